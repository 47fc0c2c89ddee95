"""The heads that we write ourselves are, byte for byte, what the libraries would write."""

from __future__ import annotations

import pytest
from google.api.httpbody_pb2 import HttpBody  # type: ignore[import-untyped]
from h2.connection import H2Connection
from hyperframe.frame import DataFrame
from hypothesis import given
from hypothesis import strategies as st

from rrpa_sidecar.frontend.batched.heads import HEAD_LIMIT_BYTES, body_head, stream_head, varint
from rrpa_sidecar.frontend.batched.step import SHORT_BYTES, SHORT_WINDOW_BYTES
from rrpa_sidecar.pb import rrpa_pb2 as pb

EDGES = [0, 1, 0x7F, 0x80, 0x3FFF, 0x4000, 0x1FFFFF, 0x200000, 2**35, 2**63]
SIZES = [1, 112, 117, 118, 127, 128, 245, 250, 16370]
"""Around one and two bytes of length: of the data, of the message and of the frame."""


def framed(stream_id: int, message: bytes) -> bytes:
    body = b"\0" + len(message).to_bytes(4, "big") + message
    return bytes(DataFrame(stream_id, body).serialize())


@pytest.mark.parametrize("offset", EDGES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("stream_id", [1, 2**31 - 1])
def test_a_stream_frame_is_what_protobuf_and_hyperframe_write(stream_id, offset, size) -> None:
    data = b"x" * size
    message = pb.CreateStreamResponse(offset=offset, data=data).SerializeToString()
    head = stream_head(stream_id, offset, size)
    assert head + data == framed(stream_id, message)
    assert len(head) <= HEAD_LIMIT_BYTES


@pytest.mark.parametrize("size", SIZES)
def test_a_body_frame_is_what_protobuf_and_hyperframe_write(size) -> None:
    data = b"x" * size
    message = HttpBody(data=data).SerializeToString()
    assert body_head(5, 1000, size) + data == framed(5, message)


@given(st.integers(1, 2**31 - 1), st.integers(0, 2**63), st.integers(1, 16000))
def test_any_stream_frame_is_too(stream_id, offset, size) -> None:
    data = b"\xc3" * size
    message = pb.CreateStreamResponse(offset=offset, data=data).SerializeToString()
    assert stream_head(stream_id, offset, size) + data == framed(stream_id, message)


def test_a_varint_has_seven_bits_a_byte() -> None:
    written = {0: b"\0", 127: b"\x7f", 128: b"\x80\x01", 300: b"\xac\x02"}
    assert {value: varint(value) for value in written} == written


def test_what_goes_the_short_way_fits_into_the_smallest_frame_and_window_there_is() -> None:
    longest = "\ufffd".encode() * SHORT_BYTES
    assert HEAD_LIMIT_BYTES + len(longest) <= SHORT_WINDOW_BYTES
    assert (
        H2Connection().max_outbound_frame_size >= SHORT_WINDOW_BYTES
    )  # and RFC 9113 lets nobody lower it
