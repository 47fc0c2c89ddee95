"""Request identity in and out (P5, E4, field-bugs.md G47)."""

from __future__ import annotations

import re

import pytest

from tests.conformance.asking import replay
from tests.conformance.callers import Caller, GrpcCaller

BOTH = ["x-request-id", "x-stream-id"]


@pytest.mark.parametrize("header", BOTH)
def test_id_comes_back_unchanged(caller: Caller, header: str) -> None:
    answer = caller.ask(replay([b"ok"]), [(header, "My-Name_7.3,with a comma")])
    assert answer.headers[header] == ["My-Name_7.3,with a comma"]


@pytest.mark.parametrize("header", BOTH)
@pytest.mark.parametrize("given", ["absent", "empty"])
def test_absent_and_empty_ids_are_made_up(caller: Caller, header: str, given: str) -> None:
    metadata = [(header, "")] if given == "empty" else []
    seen = set()
    for _ in range(2):
        answer = caller.ask(replay([b"ok"]), metadata)
        assert answer.complete, (answer.code, answer.text)
        (value,) = answer.headers[header]
        assert re.fullmatch(r"[0-9a-zA-Z-]{8,64}", value), value
        seen.add(value)
    assert len(seen) == 2


@pytest.mark.parametrize("header", BOTH)
def test_a_caller_cannot_slip_in_a_second_id(caller: Caller, header: str) -> None:
    answer = caller.ask(replay([b"ok"]), [(header, "one"), (header, "two")])
    if answer.complete:
        (value,) = answer.headers[header]
        assert value in ("one", "one,two", "one, two"), "a proxy's one value, or the first"
    else:
        assert answer.code in ("INVALID_ARGUMENT", "400"), (answer.code, answer.text)
        assert header in answer.text


def test_servers_own_name_of_the_stream_cannot_be_chosen(caller: Caller) -> None:
    answer = caller.ask(replay([b"ok"]), [("rrpa-stream-id", "0" * 32)])
    (value,) = answer.headers["rrpa-stream-id"]
    assert re.fullmatch("[0-9a-f]{32}", value)
    assert value != "0" * 32


@pytest.mark.parametrize("priority", ["-100", "0", "100"])
def test_priority_within_its_range_is_taken(caller: Caller, priority: str) -> None:
    assert caller.ask(replay([b"ok"]), [("x-priority", priority)]).complete


@pytest.mark.parametrize("priority", ["-101", "101", "high", "1.5"])
def test_priority_outside_its_range_is_invalid(caller: Caller, priority: str) -> None:
    answer = caller.ask(replay([b"ok"]), [("x-priority", priority)])
    assert answer.code in ("INVALID_ARGUMENT", "400"), (answer.code, answer.text)
    assert "x-priority" in answer.text


def test_trailers_tell_the_offset_and_where_the_first_token_spent_its_time(
    grpc_caller: GrpcCaller,
) -> None:
    answer = grpc_caller.ask(replay([b"12345", b"67"], delay_s=0.05))
    assert answer.trailers["rrpa-offset"] == ["7"]
    (timing,) = answer.trailers["server-timing"]
    parts = dict(re.findall(r"(\w+);dur=([\d.]+)", timing))
    assert set(parts) == {"queue", "engine", "sidecar"}
    assert 50 <= float(parts["engine"]) < 1000, timing
