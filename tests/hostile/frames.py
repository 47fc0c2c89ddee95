"""HTTP/2 frames written by hand, right and wrong ones. Pure.

Source: RFC 9113, 4.1 and 6; RFC 7541, 5 and 6.
"""

from __future__ import annotations

import struct

from tests.harness import raw_h2
from tests.harness.raw_h2 import DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM

PRIORITY, PUSH_PROMISE, WINDOW_UPDATE, ALTSVC, PRIORITY_UPDATE = 2, 5, 8, 10, 16
PADDED = 8

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = 0, 1, 2, 3
STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL = 5, 6, 7, 8
COMPRESSION_ERROR, CALM = 9, 11

STREAM = "/rrpa.v1.RRPAService/CreateStream"
MODELS = "/rrpa.v1.RRPAService/ListModels"

FIELDS = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", STREAM.encode()),
    (b":authority", b"x"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
]


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    """Return one frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """Return one header field that enters no table."""
    return b"\0" + raw_h2.text(name) + raw_h2.text(value)


def block(*more: tuple[bytes, bytes], **instead: str) -> bytes:
    """Return the header block of a call; `method="GET"` replaces `:method`, "" leaves it out."""
    fields = []
    for name, value in FIELDS:
        given = instead.get(name.decode().strip(":").replace("-", "_"))
        if given != "":
            fields.append((name, value if given is None else given.encode("latin-1")))
    return b"".join(literal(name, value) for name, value in [*fields, *more])


def head(stream: int, fields: bytes | None = None, flags: int = END_HEADERS) -> bytes:
    """Return a HEADERS frame."""
    return frame(HEADERS, block() if fields is None else fields, flags, stream)


def in_pieces(stream: int, fields: bytes, size: int = 16_384) -> bytes:
    """Return a header block as HEADERS and CONTINUATIONs."""
    pieces = [fields[at : at + size] for at in range(0, len(fields), size)]
    last = len(pieces) - 1
    return b"".join(
        frame(raw_h2.CONTINUATION if at else HEADERS, piece, END_HEADERS * (at == last), stream)
        for at, piece in enumerate(pieces)
    )


def message(raw: bytes = b"") -> bytes:
    """Return `raw` as gRPC's body has it."""
    return b"\0" + struct.pack(">I", len(raw)) + raw


def call(stream: int, request: bytes = b"", fields: bytes | None = None) -> bytes:
    """Return a whole call."""
    return head(stream, fields) + frame(DATA, message(request), END_STREAM, stream)


def reset(stream: int, code: int = CANCEL) -> bytes:
    """Return a RST_STREAM."""
    return frame(RST_STREAM, struct.pack(">I", code), 0, stream)


def window(increment: int, stream: int = 0) -> bytes:
    """Return a WINDOW_UPDATE."""
    return frame(WINDOW_UPDATE, struct.pack(">I", increment), 0, stream)


def settings(*pairs: tuple[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(raw_h2.SETTINGS, b"".join(struct.pack(">HI", *pair) for pair in pairs))
