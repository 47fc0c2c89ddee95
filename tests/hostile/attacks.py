"""What hostile peers do: one row each, and what has to come of it."""

from __future__ import annotations

import dataclasses
import socket
import struct
from collections.abc import Callable, Iterator

from tests.harness import raw_h2
from tests.harness.raw_h2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
)
from tests.hostile.conftest import request
from tests.hostile.frames import (
    ALTSVC,
    CALM,
    COMPRESSION_ERROR,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    MODELS,
    NO_ERROR,
    PADDED,
    PRIORITY,
    PRIORITY_UPDATE,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    STREAM_CLOSED,
    WINDOW_UPDATE,
    block,
    call,
    frame,
    head,
    in_pieces,
    literal,
    message,
    reset,
    settings,
    window,
)

ENDLESS = request(tokens=["20"], repeat=100_000, delay_s=0.05)
SHORT = request(tokens=["6869"])
PLAIN = block(path=MODELS)


@dataclasses.dataclass(frozen=True)
class Attack:
    """Bytes, and the only right answer to them."""

    name: str
    raw: Callable[[], Iterator[bytes]]
    """What is sent after a greeting, piece by piece."""
    goaway: int | None = None
    """The connection ends with this code."""
    reset: tuple[int, int] | None = None
    """Or one stream ends with a code, and the connection goes on."""
    status: tuple[int, str] | None = None
    """Or one call ends with a gRPC status, or an HTTP one, and the connection goes on."""
    greet: bool = True


def once(*raw: bytes) -> Callable[[], Iterator[bytes]]:
    """Send these."""
    return lambda: iter(raw)


def flood(raw: bytes, times: int, first: bytes = b"") -> Callable[[], Iterator[bytes]]:
    """Send `raw` so many times, some 16 KiB at once."""
    at_once = max(1, 16_384 // len(raw))

    def pieces() -> Iterator[bytes]:
        yield first
        for _ in range(-(-times // at_once)):
            yield raw * at_once

    return pieces


def calls(
    count: int, make: Callable[[int], bytes], first: bytes = b""
) -> Callable[[], Iterator[bytes]]:
    """Send what `make` returns for each of `count` streams."""

    def pieces() -> Iterator[bytes]:
        yield first
        for at in range(count):
            yield make(2 * at + 1)

    return pieces


BIG = block((b"x-big", b"x" * 500_000))
FORKED = b"\x40" + raw_h2.text(b"x-a") + raw_h2.text(b"b" * 3900)

FLOODS = [
    Attack("rapid reset", calls(12_000, lambda at: call(at, ENDLESS) + reset(at)), CALM),
    Attack("rapid reset of bare headers", calls(12_000, lambda at: head(at) + reset(at)), CALM),
    Attack(
        "resets provoked by window overflow",
        calls(1000, lambda at: call(at, ENDLESS) + window(2**31 - 1, at)),
        CALM,
    ),
    Attack(
        "CONTINUATION without bytes",
        flood(frame(CONTINUATION, b"", 0, 1), 5000, frame(HEADERS, b"", 0, 1)),
        PROTOCOL_ERROR,
    ),
    Attack(
        "CONTINUATION with bytes",
        flood(
            frame(CONTINUATION, literal(b"x", b"y" * 16_000), 0, 1),
            100,
            frame(HEADERS, block(), 0, 1),
        ),
        CALM,
    ),
    Attack("SETTINGS", flood(frame(SETTINGS), 50_000), CALM),
    Attack(
        "SETTINGS with windows", flood(settings((4, 70_000)) + settings((4, 60_000)), 50_000), CALM
    ),
    Attack("SETTINGS ACK", flood(frame(SETTINGS, b"", ACK), 50_000), CALM),
    Attack("PING", flood(frame(PING, b"pingpong"), 50_000), CALM),
    Attack("PING ACK", flood(frame(PING, b"pingpong", ACK), 50_000), CALM),
    Attack("empty DATA", flood(frame(DATA, b"", 0, 1), 50_000, head(1)), CALM),
    Attack(
        "DATA of padding", flood(frame(DATA, b"\x04" + bytes(4), PADDED, 1), 5_000, head(1)), CALM
    ),
    Attack("DATA of a byte", flood(frame(DATA, b"\0", 0, 1), 120_000, head(1)), CALM),
    Attack("PRIORITY", flood(frame(PRIORITY, b"\0\0\0\1\0", 0, 3), 50_000), CALM),
    Attack("PRIORITY_UPDATE", flood(frame(PRIORITY_UPDATE, b"\0\0\0\1u=1"), 50_000), CALM),
    Attack("ALTSVC", flood(frame(ALTSVC, b"\0\1ab"), 50_000), CALM),
    Attack("WINDOW_UPDATE of the connection", flood(window(1), 50_000), CALM),
    Attack("WINDOW_UPDATE of a stream", flood(window(1, 1), 50_000, call(1, ENDLESS)), CALM),
    Attack(
        "WINDOW_UPDATE of a stream that has ended",
        flood(window(1, 1), 50_000, call(1, SHORT) + reset(1)),
        CALM,
    ),
    Attack(
        "RST_STREAM of a stream that has ended", flood(reset(1), 120_000, call(1, ENDLESS)), CALM
    ),
    Attack(
        "DATA for a stream that was reset",
        flood(frame(DATA, b"x", 0, 1), 120_000, head(1) + reset(1)),
        CALM,
    ),
    Attack("GOAWAY without an error", flood(frame(GOAWAY, bytes(8)), 50_000), CALM),
    Attack("unknown frames", flood(frame(99, b"what?"), 50_000), CALM),
]

BREACHES = [
    Attack("HTTP/1.1", once(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"), PROTOCOL_ERROR, greet=False),
    Attack(
        "TLS hello",
        once(b"\x16\x03\x01\x00\xc4\x01\x00\x00\xc0\x03\x03" + bytes(190)),
        PROTOCOL_ERROR,
        greet=False,
    ),
    Attack(
        "a wrong last byte of the preface",
        once(raw_h2.PREFACE[:-1] + b"\r", frame(SETTINGS)),
        PROTOCOL_ERROR,
        greet=False,
    ),
    Attack("window overflow of the connection", once(window(2**31 - 1)), FLOW_CONTROL_ERROR),
    Attack(
        "window overflow by SETTINGS",
        once(call(1, ENDLESS) + window(2**31 - 1 - 65_535, 1) + settings((4, 70_000))),
        FLOW_CONTROL_ERROR,
    ),
    Attack("a window of more than 2^31 - 1", once(settings((4, 2**31))), FLOW_CONTROL_ERROR),
    Attack("a window update of 0", once(window(0)), PROTOCOL_ERROR),
    Attack("frames of 1 byte at most", once(settings((5, 1))), PROTOCOL_ERROR),
    Attack("frames of 2^24 bytes", once(settings((5, 2**24))), PROTOCOL_ERROR),
    Attack("ENABLE_PUSH of 2", once(settings((2, 2))), PROTOCOL_ERROR),
    Attack("SETTINGS of 1 byte", once(frame(SETTINGS, b"x")), FRAME_SIZE_ERROR),
    Attack("SETTINGS ACK with bytes", once(frame(SETTINGS, bytes(6), ACK)), FRAME_SIZE_ERROR),
    Attack("SETTINGS on a stream", once(frame(SETTINGS, b"", 0, 1)), PROTOCOL_ERROR),
    Attack("PING of 5 bytes", once(frame(PING, b"short")), FRAME_SIZE_ERROR),
    Attack("PING on a stream", once(frame(PING, b"pingpong", 0, 1)), PROTOCOL_ERROR),
    Attack("GOAWAY on a stream", once(frame(GOAWAY, bytes(8), 0, 1)), PROTOCOL_ERROR),
    Attack("DATA on stream 0", once(frame(DATA, b"x")), PROTOCOL_ERROR),
    Attack("HEADERS on stream 0", once(frame(HEADERS, block(), END_HEADERS)), PROTOCOL_ERROR),
    Attack("PRIORITY on stream 0", once(frame(PRIORITY, b"\0\0\0\1\0")), PROTOCOL_ERROR),
    Attack("RST_STREAM on stream 0", once(frame(RST_STREAM, bytes(4))), PROTOCOL_ERROR),
    Attack(
        "RST_STREAM of 3 bytes",
        once(call(1, ENDLESS) + frame(RST_STREAM, bytes(3), 0, 1)),
        FRAME_SIZE_ERROR,
    ),
    Attack("WINDOW_UPDATE of 3 bytes", once(frame(WINDOW_UPDATE, bytes(3))), FRAME_SIZE_ERROR),
    Attack("CONTINUATION on stream 0", once(frame(CONTINUATION, b"", END_HEADERS)), PROTOCOL_ERROR),
    Attack(
        "CONTINUATION of nothing",
        once(frame(CONTINUATION, block(), END_HEADERS, 1)),
        PROTOCOL_ERROR,
    ),
    Attack(
        "PING inside a header block",
        once(frame(HEADERS, b"", 0, 1) + frame(PING, b"pingpong")),
        PROTOCOL_ERROR,
    ),
    Attack(
        "CONTINUATION of another stream",
        once(frame(HEADERS, b"", 0, 1) + frame(CONTINUATION, block(), END_HEADERS, 3)),
        PROTOCOL_ERROR,
    ),
    Attack(
        "PUSH_PROMISE",
        once(call(1, ENDLESS) + frame(PUSH_PROMISE, b"\0\0\0\2" + block(), END_HEADERS, 1)),
        PROTOCOL_ERROR,
    ),
    Attack("DATA on a stream that never was", once(frame(DATA, b"x", 0, 1)), PROTOCOL_ERROR),
    Attack("WINDOW_UPDATE on a stream that never was", once(window(1, 7)), PROTOCOL_ERROR),
    Attack("an even stream", once(head(2)), PROTOCOL_ERROR),
    Attack("a stream that goes back", once(head(3) + head(1)), PROTOCOL_ERROR),
    Attack("a frame of 2^24 - 1 bytes", once(b"\xff\xff\xff\0\0\0\0\0\1"), FRAME_SIZE_ERROR),
    Attack(
        "a frame of 16,385 bytes", once(b"\0\x40\1" + frame(DATA, b"", 0, 1)[3:]), FRAME_SIZE_ERROR
    ),
    Attack(
        "padding longer than its frame",
        once(head(1) + frame(DATA, b"\x09abc", PADDED, 1)),
        PROTOCOL_ERROR,
    ),
    Attack(
        "a stream that depends on itself",
        once(frame(PRIORITY, b"\0\0\0\3\0", 0, 3)),
        PROTOCOL_ERROR,
    ),
    Attack("header bytes that are no HPACK", once(head(1, b"\xff" * 20)), COMPRESSION_ERROR),
    Attack("an index of 0", once(head(1, b"\x80")), COMPRESSION_ERROR),
    Attack("an index beyond the table", once(head(1, block() + b"\xff\x20")), COMPRESSION_ERROR),
    Attack(
        "an index without end",
        once(head(1, block() + b"\xff" + b"\x80" * 10_000)),
        COMPRESSION_ERROR,
    ),
    Attack("a text longer than its block", once(head(1, b"\0\x05abc")), COMPRESSION_ERROR),
    Attack("wrong Huffman padding", once(head(1, block() + b"\0\x01x\x81\x00")), COMPRESSION_ERROR),
    Attack("a table of 1 MiB", once(head(1, b"\x3f\xe1\xff\x3f" + block())), COMPRESSION_ERROR),
    Attack("a new table size after a field", once(head(1, block() + b"\x20")), COMPRESSION_ERROR),
    Attack("headers of half a megabyte", once(in_pieces(1, BIG)), CALM),
    Attack("a bomb of table references", once(head(1, block() + FORKED + b"\xbe" * 2000)), CALM),
    Attack(
        "a bomb of empty fields", once(in_pieces(1, block() + literal(b"a", b"") * 12_000)), CALM
    ),
    Attack("no headers", once(head(1, b"")), PROTOCOL_ERROR),
    Attack("upper case", once(head(1, block((b"X-Upper", b"1")))), PROTOCOL_ERROR),
    Attack("connection-specific", once(head(1, block((b"connection", b"close")))), PROTOCOL_ERROR),
    Attack(
        "transfer-encoding",
        once(head(1, block((b"transfer-encoding", b"chunked")))),
        PROTOCOL_ERROR,
    ),
    Attack("TE of gzip", once(head(1, block(te="gzip"))), PROTOCOL_ERROR),
    Attack("no :method", once(head(1, block(method=""))), PROTOCOL_ERROR),
    Attack("no :path", once(head(1, block(path=""))), PROTOCOL_ERROR),
    Attack("no :scheme", once(head(1, block(scheme=""))), PROTOCOL_ERROR),
    Attack("two :path", once(head(1, literal(b":path", b"/") + block())), PROTOCOL_ERROR),
    Attack(
        "an unknown pseudo-header", once(head(1, literal(b":what", b"?") + block())), PROTOCOL_ERROR
    ),
    Attack(
        "a pseudo-header that comes late",
        once(head(1, block(path="") + literal(b":path", b"/"))),
        PROTOCOL_ERROR,
    ),
    Attack(
        ":status in a request", once(head(1, literal(b":status", b"200") + block())), PROTOCOL_ERROR
    ),
    Attack("an empty name", once(head(1, block((b"", b"1")))), PROTOCOL_ERROR),
    Attack("a space before a value", once(head(1, block((b"x-a", b" 1")))), PROTOCOL_ERROR),
    Attack("a line break in a value", once(head(1, block((b"x-a", b"1\r\nb: 2")))), PROTOCOL_ERROR),
    Attack("NUL in a value", once(head(1, block((b"x-a", b"1\0")))), PROTOCOL_ERROR),
    Attack(
        "trailers that do not end the stream",
        once(head(1) + head(1, literal(b"x-a", b"1"))),
        PROTOCOL_ERROR,
    ),
    Attack(
        "a body of another length",
        once(
            head(1, block((b"content-length", b"3"))) + frame(DATA, message(SHORT), END_STREAM, 1)
        ),
        PROTOCOL_ERROR,
    ),
]

ON_A_STREAM = [
    Attack(
        "window overflow of a stream",
        once(call(1, ENDLESS) + window(2**31 - 1, 1)),
        reset=(1, FLOW_CONTROL_ERROR),
    ),
    Attack(
        "DATA after the end of the request",
        once(call(1, ENDLESS) + frame(DATA, b"x", 0, 1)),
        reset=(1, STREAM_CLOSED),
    ),
    Attack(
        "DATA after a reset",
        once(head(1) + reset(1) + frame(DATA, b"x", 0, 1)),
        reset=(1, STREAM_CLOSED),
    ),
    Attack(
        "a second request on a stream", once(call(1, ENDLESS) + head(1)), reset=(1, STREAM_CLOSED)
    ),
    Attack("no request", once(head(1) + frame(DATA, b"", END_STREAM, 1)), status=(1, "3")),
    Attack("no body at all", once(head(1, None, END_HEADERS | END_STREAM)), status=(1, "3")),
    Attack("half a prefix", once(head(1) + frame(DATA, b"\0\0\0", END_STREAM, 1)), status=(1, "3")),
    Attack(
        "half a request",
        once(head(1) + frame(DATA, message(b"abc")[:-1], END_STREAM, 1)),
        status=(1, "3"),
    ),
    Attack(
        "two requests", once(head(1) + frame(DATA, message() * 2, END_STREAM, 1)), status=(1, "3")
    ),
    Attack(
        "a compressed request",
        once(head(1) + frame(DATA, b"\1\0\0\0\1x", END_STREAM, 1)),
        status=(1, "3"),
    ),
    Attack(
        "a flag of 7", once(head(1) + frame(DATA, b"\7\0\0\0\1x", END_STREAM, 1)), status=(1, "3")
    ),
    Attack("no protobuf", once(call(1, b"\xff\xff")), status=(1, "3")),
    Attack(
        "a request of 4 GiB",
        once(head(1) + frame(DATA, b"\0\xff\xff\xff\xff", 0, 1)),
        status=(1, "8"),
    ),
    Attack(
        "a request over the limit by a byte",
        once(head(1) + frame(DATA, b"\0" + struct.pack(">I", 2**23 + 1), 0, 1)),
        status=(1, "8"),
    ),
    Attack(
        "grpc-encoding gzip", once(head(1, block((b"grpc-encoding", b"gzip")))), status=(1, "12")
    ),
    Attack(
        "an unknown method", once(head(1, block(path="/rrpa.v1.RRPAService/No"))), status=(1, "12")
    ),
    Attack("a path that is none", once(head(1, block(path="*"))), status=(1, "12")),
    Attack(
        "a timeout without a unit", once(head(1, block((b"grpc-timeout", b"5")))), status=(1, "3")
    ),
    Attack("a negative timeout", once(head(1, block((b"grpc-timeout", b"-5S")))), status=(1, "3")),
    Attack(
        "a timeout of nine digits",
        once(head(1, block((b"grpc-timeout", b"999999999S")))),
        status=(1, "3"),
    ),
    Attack(
        "a timeout of nothing",
        once(call(1, ENDLESS, block((b"grpc-timeout", b"0n")))),
        status=(1, "4"),
    ),
    Attack(
        "a timeout of 50 ms",
        once(call(1, ENDLESS, block((b"grpc-timeout", b"50m")))),
        status=(1, "4"),
    ),
    Attack(
        "a timeout of 11,000 years",
        once(call(1, SHORT, block((b"grpc-timeout", b"99999999H")))),
        status=(1, "0"),
    ),
    Attack(
        "a timeout with windows of 0",
        once(settings((4, 0)) + call(1, ENDLESS, block((b"grpc-timeout", b"50m")))),
        status=(1, "4"),
    ),
    Attack(
        "metadata of 20,000 bytes",
        once(in_pieces(1, block((b"x-a", b"a" * 20_000)))),
        status=(1, "8"),
    ),
    Attack(
        "content-type text/plain",
        once(head(1, block(content_type="text/plain"))),
        status=(1, "415"),
    ),
    Attack(
        "content-type grpc-web",
        once(head(1, block(content_type="application/grpc-web"))),
        status=(1, "415"),
    ),
    Attack("no content-type", once(head(1, block(content_type=""))), status=(1, "415")),
    Attack("GET", once(head(1, block(method="GET"), END_HEADERS | END_STREAM)), status=(1, "405")),
    Attack(
        "CONNECT", once(head(1, block(method="CONNECT", scheme="", path=""))), status=(1, "405")
    ),
    Attack(
        "unknown frames and flags",
        once(frame(99, b"?", 255, 1) + frame(250, bytes(16_384)) + call(1, SHORT)),
        status=(1, "0"),
    ),
    Attack(
        "unknown settings",
        once(settings((99, 7), (0xFFFF, 2**32 - 1)) + call(1, SHORT)),
        status=(1, "0"),
    ),
    Attack(
        "GOAWAY, and then its answers are awaited",
        once(call(1, request(tokens=["6869"], repeat=20, delay_s=0.01)) + frame(GOAWAY, bytes(8))),
        status=(1, "0"),
    ),
    Attack(
        "headers with padding and priority",
        once(
            frame(
                HEADERS,
                b"\x09" + b"\0\0\0\0\x10" + PLAIN + bytes(9),
                END_HEADERS | PADDED | 0x20,
                1,
            )
            + frame(DATA, b"\x04" + message() + bytes(4), END_STREAM | PADDED, 1)
        ),
        status=(1, "0"),
    ),
    Attack(
        "request trailers",
        once(
            head(1)
            + frame(DATA, message(SHORT), 0, 1)
            + head(1, literal(b"x-a", b"1"), END_HEADERS | END_STREAM)
        ),
        status=(1, "0"),
    ),
    Attack(
        "two table sizes and an empty table",
        once(head(1, b"\x20\x3f\xe1\x1f" + PLAIN) + frame(DATA, message(), END_STREAM, 1)),
        status=(1, "0"),
    ),
    Attack(
        "windows of 0 and then of 64 KiB",
        once(settings((4, 0)), call(1, SHORT), settings((4, 65_536))),
        status=(1, "0"),
    ),
    Attack(
        "a window below 0 and back",
        once(
            call(1, request(tokens=["61" * 4000], repeat=15)),
            settings((4, 0)),
            settings((4, 2**20)),
        ),
        status=(1, "0"),
    ),
    Attack(
        "a window of a byte, again and again",
        once(settings((4, 1)), call(1, SHORT), *(window(1, 1) for _ in range(400))),
        status=(1, "0"),
    ),
]


def one_byte_at_a_time(raw: bytes) -> Callable[[raw_h2.Connection], None]:
    """Send each byte as a read of its own."""

    def send(peer: raw_h2.Connection) -> None:
        if peer.socket.family != socket.AF_UNIX:
            peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(raw)):
            peer.socket.sendall(raw[at : at + 1])

    return send


__all__ = ["NO_ERROR"]
