"""Parsing, packing and budgets of the batched front end, without any connection."""

from __future__ import annotations

import struct

import pytest
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived
from hypothesis import given
from hypothesis import strategies as st

from rrpa_sidecar.errors import CapacityExhausted, InvalidRequest
from rrpa_sidecar.frontend.batched import headers, state, wire
from rrpa_sidecar.frontend.batched.budget import Bucket, Budget
from rrpa_sidecar.frontend.batched.gate import COST, OTHER_COST, TURN_COST, Breach, Gate
from rrpa_sidecar.frontend.batched.held import Held
from rrpa_sidecar.frontend.batched.intake import Intake
from rrpa_sidecar.frontend.batched.messages import RequestReader

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


def test_a_budget_is_used_up_by_a_flood_and_refills_with_time_up_to_its_burst() -> None:
    bucket = Bucket(burst=3, per_s=2, now_s=10)
    assert [bucket.spend(10) for _ in range(4)] == [True, True, True, False]
    assert bucket.spend(11)
    assert [bucket.spend(1000) for _ in range(4)] == [True, True, True, False]


def gate(open_calls: int = 0) -> Gate:
    return Gate(Budget(10, 0), lambda: open_calls)


def passed(gate: Gate, raw: bytes, size: int) -> list[bytes]:
    """Give `raw` to a gate in reads of `size` bytes; return the turns."""
    intake, turns = Intake(gate), []
    for at in range(0, len(raw), size):
        intake.add(raw[at : at + size])
        while True:
            turns.append(intake.turn(0))
            if not intake.waits:
                break
    return turns


def frame(kind: int, size: int, flags: int = 0) -> bytes:
    return size.to_bytes(3, "big") + bytes((kind, flags, 0, 0, 0, 1)) + b"\xff" * size


@given(st.lists(st.integers(0, 60), max_size=10), st.integers(1, 40), st.booleans())
def test_a_frame_that_is_too_long_is_found_by_its_head_wherever_it_is_cut(
    sizes: list[int], size: int, too_long: bool
) -> None:
    raw = wire.PREFACE + b"".join(frame(wire.DATA, size) for size in sizes)
    if not too_long:
        assert b"".join(passed(gate(), raw, size)) == raw
        return
    raw += frame(wire.DATA, state.FRAME_BYTES + 1)[:9]
    passed(gate(), raw[:-1], size)
    with pytest.raises(Breach) as caught:
        passed(gate(), raw, size)
    assert caught.value.code == ErrorCodes.FRAME_SIZE_ERROR


@given(st.lists(st.sampled_from(range(12)), max_size=300), st.integers(1, 20_000))
def test_turns_are_whole_frames_in_order_and_each_costs_little(kinds: list[int], size: int) -> None:
    raw = wire.PREFACE + b"".join(frame(kind, 40) for kind in kinds)
    turns = passed(gate(), raw, size)
    assert b"".join(turns) == raw
    if size >= len(raw):
        assert len(turns) <= 1 + sum(COST.get(kind, OTHER_COST) + 40 for kind in kinds) / TURN_COST
        at = len(wire.PREFACE)
        for turn in turns[:-1]:
            at += len(turn) - (len(wire.PREFACE) if turn is turns[0] else 0)
            assert (at - len(wire.PREFACE)) % 49 == 0


def test_a_read_of_many_requests_is_several_turns() -> None:
    raw = wire.PREFACE + frame(wire.HEADERS, 100) * 1000
    turns = passed(gate(), raw, len(raw))
    most = TURN_COST // (COST[wire.HEADERS] + 100) + 1
    assert max(map(len, turns)) <= most * 109 + len(wire.PREFACE)


def test_a_read_that_comes_before_the_last_one_is_done_waits_behind_it() -> None:
    raw = wire.PREFACE + frame(wire.HEADERS, 100) * 1000
    intake, turns = Intake(gate()), []
    for at in range(0, len(raw), 1000):
        intake.add(raw[at : at + 1000])
        if at % 20_000 == 0:
            turns.append(intake.turn(0))
    while intake.waits:
        turns.append(intake.turn(0))
    assert b"".join(turns) == raw


@pytest.mark.parametrize(
    ("name", "sent", "bought"),
    [("updates", 3, 30), ("frames", 3, 30), ("resets", 30, 3), ("noise", 30, 0), ("faults", 9, 0)],
)
def test_frames_that_we_send_buy_what_honest_peers_answer_them_with(
    name: str, sent: int, bought: int
) -> None:
    budget = Budget(calls_limit=10, now_s=0)
    bucket: Bucket = getattr(budget, name)
    bucket.spend(0, round(bucket._left))
    budget.sent(sent)
    assert [bucket.spend(0) for _ in range(bought + 1)] == [True] * bought + [False]


def test_a_call_buys_two_window_updates_and_all_calls_may_be_cancelled_at_once_twice() -> None:
    budget = Budget(calls_limit=10, now_s=0)
    budget.updates.spend(0, round(budget.updates._left))
    budget.began()
    assert [budget.updates.spend(0) for _ in range(3)] == [True, True, False]
    assert [budget.resets.spend(0) for _ in range(121)] == [True] * 120 + [False]


@pytest.mark.parametrize("size", [1, 23, 24, 100])
@pytest.mark.parametrize("raw", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"])
def test_what_is_no_preface_is_a_breach_at_its_first_wrong_byte(raw: bytes, size: int) -> None:
    with pytest.raises(Breach) as caught:
        passed(gate(), raw, size)
    assert caught.value.code == ErrorCodes.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("raw", "allowed"),
    [
        (frame(wire.SETTINGS, 0), 1000),
        (frame(6, 8), 1000),
        (frame(6, 8, 1), 1000),
        (frame(2, 5), 1000),
        (frame(wire.DATA, 0), 1000),
        (frame(99, 0), 1000),
        (frame(wire.WINDOW_UPDATE, 4), 10_000),
        (frame(wire.CONTINUATION, 16_384), 16),
        (frame(wire.RST_STREAM, 4), 50_000),
        (frame(wire.DATA, 0, wire.END_STREAM), 50_000),
        (frame(wire.DATA, 1), 50_000),
    ],
    ids=["SETTINGS", "PING", "PING ACK", "PRIORITY", "empty DATA", "unknown", "WINDOW_UPDATE",
         "CONTINUATION", "RST_STREAM", "last DATA", "DATA of a byte"],
)  # fmt: skip
def test_a_flood_is_cut_at_its_limit(raw: bytes, allowed: int) -> None:
    passed(gate(), wire.PREFACE + raw * allowed, 65_536)
    with pytest.raises(Breach) as caught:
        passed(gate(), wire.PREFACE + raw * (allowed + 1), 65_536)
    assert caught.value.code == ErrorCodes.ENHANCE_YOUR_CALM


def test_frames_full_of_a_request_are_no_flood_however_many() -> None:
    raw = frame(wire.DATA, 1024) * 1000
    judge = gate()
    passed(judge, wire.PREFACE, 65_536)
    for _ in range(60):
        passed(judge, raw, 65_536)


def test_each_call_brings_the_frames_that_it_needs() -> None:
    budget = Budget(100, 0.0)
    assert budget.frames.spend(0.0, 50_000)
    for _ in range(1000):
        budget.began()
        assert budget.frames.spend(0.0, 10)
    assert not budget.frames.spend(0.0)


def test_settings_cost_more_when_many_streams_have_to_be_told() -> None:
    raw = wire.PREFACE + frame(wire.SETTINGS, 6) * 20
    assert len(passed(gate(open_calls=0), raw, len(raw))) == 1
    assert len(passed(gate(open_calls=10_000), raw, len(raw))) > 1
    with pytest.raises(Breach):
        passed(gate(open_calls=10_000), raw + frame(wire.SETTINGS, 6) * 80, 10_000)


def test_what_half_arrived_requests_hold_is_bounded_over_all_connections() -> None:
    held = Held(10)
    held.change(10)
    held.check()
    held.change(1)
    with pytest.raises(CapacityExhausted, match="--queue-bytes"):
        held.check()
    held.change(-1)
    held.check()


@given(st.binary(max_size=40))
def test_a_binary_field_of_any_bytes_is_read_and_ends_nothing(value: bytes) -> None:
    fields = [(b":method", b"POST"), (b":path", b"/a/b"), (b"x-bin", value)]
    assert [key for key, _ in headers.read(fields).metadata] == ["x-bin"] * (value.count(b",") + 1)
