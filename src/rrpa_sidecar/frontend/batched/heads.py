"""All that stands before the bytes of an answer, in one piece: HTTP/2, gRPC, protobuf. Pure.

A token's frame is 9 bytes of DATA head, 5 of gRPC's prefix, the message's tags and lengths, and
the token. `struct` writes them all in one call for what nearly every frame is: less than 128
bytes at an offset below 2^21. protobuf's own serializer took 0.9 µs for the message alone.

Source: RFC 9113, 4.1 and 6.1; gRPC over HTTP2, "Length-Prefixed-Message"; rrpa.proto and
google/api/httpbody.proto for the fields' numbers (tests hold them against protobuf).
"""

from __future__ import annotations

import struct
from collections.abc import Callable

HEAD_LIMIT_BYTES = 40
"""No head is longer."""

Head = Callable[[int, int, int], bytes]
"""(stream_id, offset, size) → what goes before `size` bytes at `offset` of the answer."""

_OFFSET, _DATA = 0x08, 0x12  # field 1, varint; field 2, bytes: of CreateStreamResponse
_BODY = 0x12  # field 2, bytes: of HttpBody

_frame = struct.Struct(">BHxxLxL").pack  # DATA is type 0, no flags; not compressed
# Below 128 bytes of data all lengths have one byte: x writes the zeros before them.
_short_body = struct.Struct(">xxBxxLxxxxBBB").pack
_short_at_2 = struct.Struct(">xxBxxLxxxxBBBBBB").pack
_short_at_3 = struct.Struct(">xxBxxLxxxxBBBBBBB").pack


def stream_head(stream_id: int, offset: int, size: int) -> bytes:
    """Return the head of a DATA frame with one whole CreateStreamResponse."""
    if size < 0x80:
        if 0x80 <= offset < 0x4000:
            return _short_at_2(
                size + 10, stream_id, size + 5,
                _OFFSET, offset & 0x7F | 0x80, offset >> 7, _DATA, size,
            )  # fmt: skip
        if 0x4000 <= offset < 0x200000:
            return _short_at_3(
                size + 11, stream_id, size + 6,
                _OFFSET, offset & 0x7F | 0x80, offset >> 7 & 0x7F | 0x80, offset >> 14,
                _DATA, size,
            )  # fmt: skip
    at = b"%c%b" % (_OFFSET, varint(offset)) if offset else b""
    return _with_frame(stream_id, at + b"%c%b" % (_DATA, varint(size)), size)


def body_head(stream_id: int, offset: int, size: int) -> bytes:
    """Return the head of a DATA frame with one whole HttpBody that names no type."""
    if size < 0x80:
        return _short_body(size + 7, stream_id, size + 2, _BODY, size)
    return _with_frame(stream_id, b"%c%b" % (_BODY, varint(size)), size)


def _with_frame(stream_id: int, head: bytes, size: int) -> bytes:
    message = len(head) + size
    return _frame(message + 5 >> 16, message + 5 & 0xFFFF, stream_id, message) + head


def varint(value: int) -> bytes:
    """Return `value` as protobuf writes it: seven bits a byte, lowest first."""
    raw = bytearray()
    while value >= 0x80:
        raw.append(value & 0x7F | 0x80)
        value >>= 7
    raw.append(value)
    return bytes(raw)
