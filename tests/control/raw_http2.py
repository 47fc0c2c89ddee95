"""Just enough HTTP/2 by hand to send what no gRPC library would."""

from __future__ import annotations

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, DATA, SETTINGS = 1, 0, 4
END_HEADERS = 4

ATTACH_HEADERS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/rrpa.v1.EngineService/Attach"),
    (b":authority", b"localhost"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return one frame. Source: RFC 9113, 4.1."""
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags])
    return head + stream.to_bytes(4, "big") + payload


def header_block(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """Encode without table or Huffman. Source: RFC 7541, 6.2.2."""
    return b"".join(
        b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in headers
    )


def attach_call() -> bytes:
    """Return a connection's first bytes: everything of an Attach call but its messages."""
    headers = frame(HEADERS, END_HEADERS, 1, header_block(ATTACH_HEADERS))
    return PREFACE + frame(SETTINGS, 0, 0, b"") + headers


def message(payload: bytes, length: int | None = None) -> bytes:
    """Return a gRPC message; `length` lies about its size."""
    size = len(payload) if length is None else length
    return frame(DATA, 0, 1, b"\0" + size.to_bytes(4, "big") + payload)
