"""What a peer, an engine and a transport may do to a connection, drawn at random. Pure.

The source of chance is anything with random.Random's `randrange`: a seed, hypothesis, or the bytes
of a coverage-guided fuzzer. Most frames are right, so that wrong ones meet states worth breaking.
"""

from __future__ import annotations

import struct
from typing import Protocol

from rrpa_sidecar.frontend.metadata import PLAIN_HTTP
from rrpa_sidecar.frontend.methods import REFLECT
from tests.harness import raw_h2
from tests.hostile import frames
from tests.hostile.frames import (
    FIELDS,
    MODELS,
    STREAM,
    block,
    frame,
    literal,
    message,
    reset,
    settings,
    window,
)

Action = tuple[str, bytes | int]
"""("bytes", raw) from the peer; or what the engine, the transport or the daemon does, and a
number to choose with."""

OTHERS = (
    "data",
    "finish",
    "fail",
    "wake",
    "pause",
    "resume",
    "turn",
    "drain",
    "end_all",
    "wait",
    "jump",
)
TAME_OTHERS = OTHERS[:-1]
PATHS = (
    STREAM,
    STREAM,
    MODELS,
    "/grpc.health.v1.Health/Watch",
    "/grpc.health.v1.Health/Check",
    REFLECT,
    "/rrpa.v1.RRPAService/CreateMessage",
    "/no",
)
RIGHT = 8
EXTRA = (
    (b"grpc-timeout", b"1H"),
    (b"grpc-timeout", b"20m"),
    (b"grpc-timeout", b"0n"),
    (b"grpc-timeout", b"?"),
    (b"x-request-id", b"a"),
    (b"grpc-encoding", b"gzip"),
    (b"x-bin", b"!"),
    (PLAIN_HTTP.encode(), b"1"),
    # So many are right; the others are not.
    (b"x-request-id", b"\xff"),
    (b"content-length", b"5"),
    (b"content-length", b"x"),
    (b"Upper", b"1"),
    (b"te", b"gzip"),
    (b":late", b"1"),
    (b"x-big", b"x" * 20_000),
)


class Chance(Protocol):
    """random.Random, or what stands for it."""

    def randrange(self, stop: int, /) -> int: ...


def actions(chance: Chance, count: int, *, wild: bool) -> list[Action]:
    """Return a greeting and `count` things that happen after it.

    wild: the peer also does what it may not. It soon ends its connection by that.
    """
    pick = chance.randrange
    first = raw_h2.PREFACE + settings(*_some_settings(chance, wild))
    found: list[Action] = [("bytes", _mutated(chance, first) if wild and pick(9) == 8 else first)]
    streams = [-1]
    for _ in range(count):
        if pick(3) == 2:
            others = OTHERS if wild else TAME_OTHERS
            found.append((others[pick(len(others))], pick(8)))
            continue
        raw = b"".join(_some_frame(chance, streams, wild) for _ in range(1 + pick(4)))
        if wild and pick(9) == 8:
            raw = _mutated(chance, raw)
        if pick(6) == 5:
            cut = pick(len(raw) + 1)
            found.append(("bytes", raw[:cut]))
            raw = raw[cut:]
        found.append(("bytes", raw))
    return found


def _some_frame(chance: Chance, streams: list[int], wild: bool) -> bytes:
    pick = chance.randrange
    stream = streams[pick(len(streams))]
    kind = pick(26 if wild else 19)
    if kind < 8 or stream < 0:
        streams.append(streams[-1] + 2)
        del streams[:-6]
        return _some_request(chance, streams[-1], wild)
    if kind < 11:
        return reset(stream, pick(14))
    if kind < 15:
        sizes = (1, 100, 65_535, 2**20, 2**31 - 1)
        return window(sizes[pick(5 if wild else 4)], (0, stream)[pick(2)])
    table = (
        lambda: settings(*_some_settings(chance, wild)),
        lambda: frame(raw_h2.SETTINGS, b"", 1),
        lambda: frame(raw_h2.PING, bytes(8), pick(2)),
        lambda: frame(raw_h2.GOAWAY, bytes(8)),
        lambda: frame(frames.PRIORITY, struct.pack(">IB", pick(9), pick(256)), 0, stream),
        lambda: frame(raw_h2.GOAWAY, struct.pack(">II", pick(9), pick(14))),
        lambda: frame(pick(256), bytes(pick(20)), pick(256), (0, stream)[pick(2)]),
        lambda: frame(raw_h2.HEADERS, literal(b"x-t", b"1"), 5, stream),
        lambda: _some_request(chance, stream, wild),
        lambda: _some_data(chance, stream),
        lambda: _some_data(chance, stream),
    )
    return table[kind - 15]()


def _some_data(chance: Chance, stream: int) -> bytes:
    pick = chance.randrange
    flags = (0, 1, 8, 9)[pick(4)]
    body = (message(), b"", b"\0\0", message(bytes(pick(40))), bytes(pick(16_384)))[pick(5)]
    return frame(raw_h2.DATA, bytes([pick(4)]) + body if flags & 8 else body, flags, stream)


def _some_request(chance: Chance, stream: int, wild: bool) -> bytes:
    pick = chance.randrange
    extra = EXTRA if wild else EXTRA[:RIGHT]
    more = [extra[pick(len(extra))] for _ in range(pick(3) // 2)]
    fields = block(*more, path=PATHS[pick(len(PATHS))])
    if wild and pick(9) == 8:
        fields = _mutated(chance, fields)
    if pick(9) == 8:
        fields = b"".join(b"\x40" + raw_h2.text(k) + raw_h2.text(v) for k, v in FIELDS)
    size = 1 + pick(40) if pick(9) == 8 else 16_384
    raw = frames.in_pieces(stream, fields, size if len(fields) < 60 * size else 16_384)
    shape = pick(8)
    if shape < 6:
        return raw + frame(raw_h2.DATA, message(bytes(pick(3))), raw_h2.END_STREAM, stream)
    if shape == 6:
        return raw + frame(raw_h2.DATA, message(bytes(20))[: pick(25)], 0, stream)
    return raw


def _some_settings(chance: Chance, wild: bool) -> list[tuple[int, int]]:
    pick = chance.randrange
    values = (0, 1, 2, 16_384, 65_535, 2**24 - 1, 2**31 - 1, 2**31)
    likely = ((4, 65_535), (4, 0), (4, 100), (1, 4096), (1, 0), (5, 16_384), (3, 100))
    if wild and pick(8) == 7:
        return [(pick(9), values[pick(8)]) for _ in range(pick(4))]
    return [likely[pick(len(likely))] for _ in range(pick(3))]


def _mutated(chance: Chance, raw: bytes) -> bytes:
    pick = chance.randrange
    out = bytearray(raw)
    for _ in range(1 + pick(3)):
        at = pick(len(out)) if out else 0
        way = pick(4)
        if way == 0:
            out[at : at + 1] = bytes([pick(256)])
        elif way == 1:
            del out[at : at + 1 + pick(8)]
        elif way == 2:
            out[at:at] = bytes([pick(256) for _ in range(pick(8))])
        else:
            out += out[at : at + 9]
    return bytes(out)
