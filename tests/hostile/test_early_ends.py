"""Calls that are reset, refused early or never sent, in process and on a clock that jumps."""

from __future__ import annotations

import pytest
from hpack import Decoder

from rrpa_sidecar.frontend.batched.budget import QUICK_S
from rrpa_sidecar.frontend.batched.open_calls import CALL_BYTES
from rrpa_sidecar.frontend.metadata import TOTAL_LIMIT_BYTES
from rrpa_sidecar.status import Code
from tests.harness.raw_h2 import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, RST_STREAM
from tests.hostile.driver import Driver, playground
from tests.hostile.frames import (
    MODELS,
    NO_ERROR,
    block,
    call,
    head,
    in_pieces,
    reset,
    settings,
    window,
)


def answers(raw: bytes) -> list[dict[str, str]]:
    """Return the header fields of each answer."""
    decoder, found = Decoder(), []
    while raw:
        size = 9 + int.from_bytes(raw[:3], "big")
        if raw[3] == HEADERS:
            found.append(dict(decoder.decode(raw[9:size])))
        raw = raw[size:]
    return found


@pytest.mark.parametrize(("kept_s", "cost"), [(0.0, 1), (QUICK_S - 0.1, 1), (QUICK_S + 0.1, 0)])
def test_a_reset_costs_something_unless_the_call_was_kept_for_a_while(
    kept_s: float, cost: int
) -> None:
    with playground() as (loop, faults):
        driver = Driver(loop, faults)
        connection, _ = driver.begin()
        connection.data_received(PREFACE + settings() + call(1))
        loop.turns(1)
        loop.jump(kept_s)
        budget = connection._budget.resets
        assert budget._left == budget._burst
        connection.data_received(reset(1))
        loop.turns(1)
        assert budget._burst - budget._left == cost
        assert driver.broker.streams[0].left == 1


def test_calls_that_send_no_request_are_refused_when_too_many_wait() -> None:
    with playground() as (loop, faults):
        driver = Driver(loop, faults)
        driver._server.streams_limit = 100
        driver._server.held.limit_bytes = 10 * CALL_BYTES
        connection, transport = driver.begin()
        connection.data_received(PREFACE + settings())
        loop.turns(1)
        for at in range(1, 101, 2):
            connection.data_received(head(at))
            loop.turns(1)
        waiting = len(connection._calls)
        assert 0 < waiting <= 10
        loop.turns()
        told = answers(bytes(transport.out))
        assert len(told) == 50 - waiting
        assert all("still arriving" in each["grpc-message"] for each in told)


@pytest.mark.parametrize(("left_s", "code"), [(0.005, "DEADLINE_EXCEEDED"), (0.05, "CANCELLED")])
def test_a_reset_just_before_the_deadline_was_made_by_it(left_s: float, code: str) -> None:
    with playground() as (loop, faults):
        driver = Driver(loop, faults)
        connection, _ = driver.begin()
        late = call(1, fields=block((b"grpc-timeout", b"100S")))
        connection.data_received(PREFACE + settings() + late)
        loop.turns(1)
        (begun,) = connection._calls.all()
        assert begun.due_s is not None
        begun.due_s = loop.time() + left_s
        connection.data_received(reset(1))
        loop.turns(1)
        codes = driver._server.service._metrics.model("test").codes
        assert {Code(at).name for at, count in enumerate(codes) if count} == {code}


@pytest.mark.parametrize(("flags", "resets"), [(END_STREAM, []), (0, [NO_ERROR])])
def test_a_peer_is_told_that_nobody_reads_the_rest_of_a_request_that_is_answered(
    flags: int, resets: list[int]
) -> None:
    with playground() as (loop, faults):
        connection, transport = Driver(loop, faults).begin()
        refused = head(1, block(path="/no"), END_HEADERS | flags)
        connection.data_received(PREFACE + settings() + refused)
        loop.turns(1)
        loop.turns()
        raw, found = bytes(transport.out), []
        while raw:
            size = 9 + int.from_bytes(raw[:3], "big")
            if raw[3] == RST_STREAM:
                found.append(int.from_bytes(raw[9:size], "big"))
            raw = raw[size:]
        assert found == resets


def test_nothing_more_of_an_answer_is_sent_on_a_stream_that_was_reset() -> None:
    with playground() as (loop, faults):
        connection, transport = Driver(loop, faults).begin()
        connection.data_received(PREFACE + settings() + call(1, fields=block(path=MODELS)))
        (asked,) = connection._calls.all()
        connection._calls.was_reset(asked)  # before the turn in which it would have been sent
        loop.turns()
        raw, kinds = bytes(transport.out), []
        while raw:
            kinds.append(raw[3])
            raw = raw[9 + int.from_bytes(raw[:3], "big") :]
        assert DATA not in kinds
        assert not faults.found


def test_metadata_that_is_too_long_is_refused_before_the_request_comes() -> None:
    with playground() as (loop, faults):
        connection, transport = Driver(loop, faults).begin()
        fields = block((b"x-big", b"x" * TOTAL_LIMIT_BYTES))
        connection.data_received(PREFACE + settings() + in_pieces(1, fields))
        loop.turns(1)
        loop.turns()
        (told,) = answers(bytes(transport.out))
        assert "send less" in told["grpc-message"]


@pytest.mark.parametrize(("updates", "ended"), [(2, False), (3, True)])
def test_each_call_may_give_window_twice(
    updates: int, ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rrpa_sidecar.frontend.batched.budget.UPDATES_BURST", 10.0)
    with playground() as (loop, faults):
        connection, transport = Driver(loop, faults).begin()
        connection.data_received(PREFACE + settings())
        loop.turns(1)
        for at in range(1, 61, 2):
            connection.data_received(head(at, block(path="/no"), END_HEADERS | END_STREAM))
            loop.turns(1)
            connection.data_received(window(1) * updates)
            loop.turns(1)
        assert transport.ended is ended
