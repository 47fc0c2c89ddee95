"""Bytes on the wire that we write ourselves: headers, DATA, and the GOAWAY of a drain. Pure.

Source: RFC 9113, 4.1, 6.1, 6.2, 6.8 and 6.10; gRPC over HTTP2, "Length-Prefixed-Message".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 7, 8, 9
END_STREAM = ACK = 1
END_HEADERS = 4
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


def header_frames(stream_id: int, block: bytes, frame_limit: int, *, last: bool) -> bytes:
    """Return the frames of a header block. last: nothing follows them on the stream."""
    flags = END_STREAM if last else 0
    if len(block) <= frame_limit:
        size = len(block)
        return _head(size >> 16, size & 0xFFFF, HEADERS, flags | END_HEADERS, stream_id) + block
    parts = []
    kind = HEADERS
    for at in range(0, len(block), frame_limit):
        piece = block[at : at + frame_limit]
        if at + frame_limit >= len(block):
            flags |= END_HEADERS
        parts.append(_head(len(piece) >> 16, len(piece) & 0xFFFF, kind, flags, stream_id) + piece)
        kind, flags = CONTINUATION, 0
    return b"".join(parts)


def goaway(last_stream_id: int, error_code: int = 0) -> bytes:
    """Return a GOAWAY that leaves open streams alone: h2 knows only one that ends everything."""
    return _head(0, 8, GOAWAY, 0, 0) + struct.pack(">LL", last_stream_id, error_code)
