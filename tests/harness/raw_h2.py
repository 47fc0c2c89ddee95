"""A client that writes HTTP/2 frames by hand, for what gRPC's own client would never send.

Headers go out as plain literals (RFC 7541, 6.2.2); those of answers are decoded by hpack.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from hpack import Decoder

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, CONTINUATION = 0, 1, 3, 4, 6, 7, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
FRAME_LIMIT = 16_384


@dataclass(frozen=True)
class Frame:
    """One frame as it came."""

    kind: int
    flags: int
    stream: int
    payload: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Of a HEADERS frame."""


class Connection:
    """One connection to `host:port` or to a Unix socket's path."""

    def __init__(self, address: str, *, greet: bool = True):
        if address.startswith("/"):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(address)
        else:
            host, _, port = address.rpartition(":")
            self.socket = socket.create_connection((host.strip("[]"), int(port)))
        self._seen = b""
        self._decoder = Decoder()
        self._next_stream = 1
        if greet:
            self.socket.sendall(PREFACE)
            self.send(SETTINGS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def send(self, kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> None:
        head = struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream)
        # A peer that has closed already tells why to whoever reads.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(head + payload)

    def call(
        self,
        path: str,
        message: bytes | None = b"",
        metadata: Iterable[tuple[bytes, bytes]] = (),
    ) -> int:
        """Begin a gRPC call with one message (None: no message yet); return the stream's id."""
        stream = self._next_stream
        self._next_stream += 2
        fields = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path.encode()),
            (b":authority", b"localhost"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            *metadata,
        ]
        block = b"".join(b"\0" + text(name) + text(value) for name, value in fields)
        pieces = [block[at : at + FRAME_LIMIT] for at in range(0, len(block), FRAME_LIMIT)]
        for at, piece in enumerate(pieces):
            last = END_HEADERS if at == len(pieces) - 1 else 0
            self.send(HEADERS if at == 0 else CONTINUATION, piece, last, stream)
        if message is not None:
            body = b"\0" + struct.pack(">I", len(message)) + message
            self.send(DATA, body, END_STREAM, stream)
        return stream

    def frame(self, timeout_s: float = 30.0) -> Frame | None:
        """Return the next frame, None at the connection's end. SETTINGS are acknowledged."""
        while True:
            head = self._take(9, timeout_s)
            if head is None:
                return None
            length = int.from_bytes(head[:3], "big")
            kind, flags, stream = struct.unpack(">BBI", head[3:])
            payload = self._take(length, timeout_s)
            if payload is None:
                return None
            if kind == SETTINGS and not flags & ACK:
                self.send(SETTINGS, flags=ACK)
                continue
            if kind == PING and not flags & ACK:
                self.send(PING, payload, ACK)
            fields = self._decoder.decode(payload, raw=True) if kind == HEADERS else ()
            return Frame(kind, flags, stream, payload, tuple((k, v) for k, v in fields))

    def until(self, *kinds: int, timeout_s: float = 30.0) -> Frame | None:
        """Return the next frame of one of `kinds`, or None at the connection's end."""
        while True:
            frame = self.frame(timeout_s)
            if frame is None or frame.kind in kinds:
                return frame

    def answer(self, stream: int, timeout_s: float = 30.0) -> list[Frame]:
        """Return the frames of one stream up to its end."""
        frames: list[Frame] = []
        while True:
            frame = self.frame(timeout_s)
            if frame is None:
                return frames
            if frame.stream != stream:
                continue
            frames.append(frame)
            if frame.kind == RST_STREAM or (frame.flags & END_STREAM and frame.kind in (0, 1)):
                return frames

    def gather(self) -> None:
        """Take what has arrived, for `frame`; without it a peer that is flooded stops reading."""
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            while part := self.socket.recv(65536, socket.MSG_DONTWAIT):
                self._seen += part

    def is_closed(self, timeout_s: float = 30.0) -> bool:
        """Tell whether the peer ends the connection within the time; what it says is dropped."""
        end_s = time.monotonic() + timeout_s
        try:
            while time.monotonic() < end_s:
                self.socket.settimeout(max(end_s - time.monotonic(), 0.001))
                if not self.socket.recv(65536):
                    return True
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        return False

    def _take(self, count: int, timeout_s: float) -> bytes | None:
        self.socket.settimeout(timeout_s)
        while len(self._seen) < count:
            try:
                part = self.socket.recv(65536)
            except ConnectionResetError:
                return None
            if not part:
                return None
            self._seen += part
        taken, self._seen = self._seen[:count], self._seen[count:]
        return taken


def text(value: bytes) -> bytes:
    """Return a string literal of HPACK without Huffman coding."""
    if len(value) < 127:
        return bytes([len(value)]) + value
    out, rest = bytearray([127]), len(value) - 127
    while rest >= 128:
        out.append(rest % 128 + 128)
        rest //= 128
    out.append(rest)
    return bytes(out) + value


def field(frames: list[Frame], name: bytes) -> bytes | None:
    """Return the last value of a header in `frames`."""
    found = None
    for frame in frames:
        found = dict(frame.headers).get(name, found)
    return found
