"""Parsing, packing and budgets of the batched front end, without any connection."""

from __future__ import annotations

import struct

import pytest
from h2.connection import H2Connection
from h2.events import DataReceived
from hypothesis import given
from hypothesis import strategies as st

from rrpa_sidecar.errors import CapacityExhausted, InvalidRequest
from rrpa_sidecar.frontend.batched import headers, wire
from rrpa_sidecar.frontend.batched.budget import Bucket
from rrpa_sidecar.frontend.batched.messages import RequestReader
from rrpa_sidecar.status import Code

LIMIT = 100


def fed(body: bytes, cuts: list[int]) -> bytes:
    """Feed `body` in pieces that end at `cuts`; return the message."""
    reader = RequestReader(LIMIT)
    at = 0
    for cut in [*sorted(cuts), len(body)]:
        reader.feed(body[at:cut])
        at = max(at, cut)
    return reader.message()


@given(st.binary(max_size=LIMIT), st.lists(st.integers(0, LIMIT + 5), max_size=8))
def test_a_request_arrives_whole_wherever_its_body_is_cut(message: bytes, cuts: list[int]) -> None:
    body = wire.prefixed(message)
    assert fed(body, [cut for cut in cuts if cut <= len(body)]) == message


@given(st.binary(max_size=LIMIT), st.data())
def test_a_request_that_ends_early_is_refused(message: bytes, data: st.DataObject) -> None:
    body = wire.prefixed(message)
    short = body[: data.draw(st.integers(0, len(body) - 1))]
    with pytest.raises(InvalidRequest, match="before its request was whole"):
        fed(short, [])


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=8))
def test_any_bytes_give_one_message_or_a_refusal_the_same_for_every_cut(
    body: bytes, cuts: list[int]
) -> None:
    def outcome(cuts: list[int]) -> bytes | str:
        try:
            return fed(body, cuts)
        except (InvalidRequest, CapacityExhausted) as error:
            return str(error)

    assert outcome([cut for cut in cuts if cut <= len(body)]) == outcome([])


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        (b"\x01" + struct.pack(">L", 1) + b"x", InvalidRequest, "compressed"),
        (b"\x02" + struct.pack(">L", 1) + b"x", InvalidRequest, "no gRPC message"),
        (wire.prefixed(b"a") + b"\0", InvalidRequest, "more than one"),
        (wire.prefixed(b"a") * 2, InvalidRequest, "more than one"),
        (b"\0" + struct.pack(">L", LIMIT + 1), CapacityExhausted, "(101 vs. 100)"),
        (b"\0\xff\xff\xff\xff", CapacityExhausted, "4294967295"),
    ],
)
def test_a_wrong_body_is_refused_as_soon_as_that_is_known(
    body: bytes, error: type[Exception], words: str
) -> None:
    reader = RequestReader(LIMIT)
    with pytest.raises(error) as caught:
        for byte in body:
            reader.feed(bytes([byte]))
    assert words in str(caught.value)


@given(st.binary(max_size=2000), st.integers(1, 500))
def test_frames_are_what_an_independent_reader_reads(message: bytes, limit: int) -> None:
    client = H2Connection()
    client.initiate_connection()
    client.send_headers(1, [(":method", "GET"), (":scheme", "http"), (":path", "/"),
                            (":authority", "x")])  # fmt: skip
    server = H2Connection(__import__("h2.config").config.H2Configuration(client_side=False))
    server.initiate_connection()
    server.receive_data(client.data_to_send())
    client.receive_data(server.data_to_send())
    server.send_headers(1, [(":status", "200")])
    client.receive_data(server.data_to_send())
    cut = list(wire.frames(1, wire.prefixed(message), limit))
    assert all(len(frame) <= limit + 9 for frame in cut)
    for raw in (b"".join(cut), wire.one_frame(1, message)):
        got = client.receive_data(raw)
        assert all(isinstance(each, DataReceived) for each in got)
        body = b"".join(each.data for each in got)  # type: ignore[attr-defined]
        assert body == b"\0" + struct.pack(">L", len(message)) + message


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1H", 3600), ("2M", 120), ("3S", 3), ("20m", 0.02), ("5u", 5e-6), ("0n", 0), ("", None),
     ("99999999S", 99999999)],
)  # fmt: skip
def test_timeouts_are_read(text: str, seconds: float | None) -> None:
    assert headers.Head("/", [], timeout=text).timeout_s() == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["1", "S", "-1S", "1.5S", "999999999S", "1s", " 1S", "\u0663S"])
def test_wrong_timeouts_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="grpc-timeout"):
        headers.Head("/", [], timeout=text).timeout_s()


def head(**extra: str) -> headers.Head:
    fields = {":method": "POST", ":path": "/p", "content-type": "application/grpc", **extra}
    return headers.read([(key.encode(), value.encode("latin-1")) for key, value in fields.items()])


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/grpc", 0),
        ("application/grpc+proto", 0),
        ("application/grpc;charset=utf-8", 0),
        ("application/grpc-web", 415),
        ("application/json", 415),
        ("", 415),
    ],
)
def test_what_is_no_grpc_call_is_told_by_its_content_type(kind: str, status: int) -> None:
    assert head(**{"content-type": kind}).http_status == status


def test_metadata_is_what_callers_say_and_not_what_the_protocol_needs() -> None:
    found = head(**{"te": "trailers", "x-a": "1", "user-agent": "me", "b-bin": "AQI,Aw=="})
    assert found.metadata == [
        ("x-a", "1"), ("user-agent", "me"), ("b-bin", "\x01\x02"), ("b-bin", "\x03"),
    ]  # fmt: skip
    assert head(**{":method": "GET"}).http_status == 405


@given(st.text())
def test_messages_of_statuses_are_printable_ascii_and_can_be_read_back(text: str) -> None:
    from urllib.parse import unquote_to_bytes

    raw = headers.percent_encoded(text)
    assert all(0x20 <= byte <= 0x7E for byte in raw)
    assert unquote_to_bytes(raw) == text.encode("utf-8", "replace")


def test_trailers_alone_are_headers_too() -> None:
    found = dict(headers.trailers(Code.UNIMPLEMENTED, "no", (("a", "b"),), alone=True))
    assert found[b":status"] == b"200"
    assert found[b"grpc-status"] == b"12"
    assert found[b"grpc-accept-encoding"] == b"identity"
    assert b":status" not in dict(headers.trailers(Code.OK, "", (), alone=False))


def test_a_budget_is_used_up_by_a_flood_and_refills_with_time_up_to_its_burst() -> None:
    bucket = Bucket(burst=3, per_s=2, now_s=10)
    assert [bucket.spend(10) for _ in range(4)] == [True, True, True, False]
    assert bucket.spend(11)
    assert [bucket.spend(1000) for _ in range(4)] == [True, True, True, False]


@given(st.lists(st.integers(0, 60), max_size=10), st.integers(1, 40), st.booleans())
def test_a_frame_that_is_too_long_is_found_by_its_head_wherever_it_is_cut(
    lengths: list[int], size: int, too_long: bool
) -> None:
    raw = wire.PREFACE + b"".join(
        length.to_bytes(3, "big") + bytes(6) + b"\xff" * length for length in lengths
    )
    if too_long:
        raw += (61).to_bytes(3, "big") + bytes(6)
    guard = wire.LengthGuard(60)
    found = [guard.is_too_long(raw[at : at + size]) for at in range(0, len(raw), size)]
    assert any(found) is too_long
    assert not any(found[:-1])
