"""Bytes on the wire that we write ourselves: DATA frames, and the GOAWAY of a drain. Pure.

Source: RFC 9113, 4.1, 6.1 and 6.8; gRPC over HTTP2, "Length-Prefixed-Message".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

DATA, GOAWAY = 0, 7
HEAD_BYTES = 9
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PREFIX_BYTES = 5
"""Before each message: a byte for compression, then its length."""

_head = struct.Struct(">BHBBL").pack
_head_and_prefix = struct.Struct(">BHBBLBL").pack
_prefix = struct.Struct(">BL").pack


def one_frame(stream_id: int, message: bytes) -> bytes:
    """Return one DATA frame with the whole of `message`, which must fit into it."""
    size = len(message) + PREFIX_BYTES
    return (
        _head_and_prefix(size >> 16, size & 0xFFFF, DATA, 0, stream_id, 0, len(message)) + message
    )


def prefixed(message: bytes) -> bytes:
    """Return `message` as gRPC delimits it in a body."""
    return _prefix(0, len(message)) + message


def frames(stream_id: int, body: bytes, frame_limit: int) -> Iterator[bytes]:
    """Yield DATA frames, each with at most `frame_limit` bytes of `body`."""
    for at in range(0, len(body), frame_limit):
        piece = body[at : at + frame_limit]
        yield _head(len(piece) >> 16, len(piece) & 0xFFFF, DATA, 0, stream_id) + piece


def goaway(last_stream_id: int, error_code: int = 0) -> bytes:
    """Return a GOAWAY that leaves open streams alone: h2 knows only one that ends everything."""
    return _head(0, 8, GOAWAY, 0, 0) + struct.pack(">LL", last_stream_id, error_code)


class LengthGuard:
    """Finds a frame that is too long by its first bytes: h2 collects it whole before it says so."""

    __slots__ = ("_head", "_limit", "_skip", "frames")

    def __init__(self, limit_bytes: int) -> None:
        self.frames = 0
        """Frames begun so far."""
        self._limit = limit_bytes
        self._skip = len(PREFACE)
        self._head = b""

    def is_too_long(self, data: bytes) -> bool:
        """Take the next bytes of the connection; tell whether a frame announces too many."""
        at = 0
        while True:
            if self._skip >= len(data) - at:
                self._skip -= len(data) - at
                return False
            at += self._skip
            self._skip = 0
            need = HEAD_BYTES - len(self._head)
            self._head += data[at : at + need]
            if len(self._head) < HEAD_BYTES:
                return False
            at += need
            self.frames += 1
            self._skip = int.from_bytes(self._head[:3], "big")
            self._head = b""
            if self._skip > self._limit:
                return True
