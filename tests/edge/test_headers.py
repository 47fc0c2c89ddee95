"""Ids and other headers: one value or none reaches the sidecar (field-bugs.md G47)."""

from __future__ import annotations

import re

import pytest

from rrpa_sidecar.edge.http import SINGLE_VALUE_HEADERS
from tests.edge.support import Edge

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
IDS = ("x-request-id", "x-stream-id")


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("given", [[], ["{};"]], ids=["absent", "empty"])
def test_missing_id_is_made(edge: Edge, name: str, given: list[str]) -> None:
    values = edge.seen(*(each.format(name) for each in given))[name]
    assert len(values) == 1
    assert UUID.fullmatch(values[0])


def test_made_ids_differ(edge: Edge) -> None:
    first, second = edge.seen(), edge.seen()
    assert len({*first["x-request-id"], *first["x-stream-id"]}) == 2
    assert all(first[name] != second[name] for name in IDS)


@pytest.mark.parametrize("name", SINGLE_VALUE_HEADERS)
@pytest.mark.parametrize("value", ["abc", "a,b", "%REQ(x)%", "%UNIQUE_ID%", "-", "a: b", "é"])
def test_value_that_was_sent_arrives_once_and_unchanged(edge: Edge, name: str, value: str) -> None:
    assert edge.seen(f"{name}: {value}")[name] == [value]


@pytest.mark.parametrize("name", SINGLE_VALUE_HEADERS)
def test_second_value_never_reaches_the_sidecar(edge: Edge, name: str) -> None:
    values = edge.seen(f"{name}: first", f"{name}: second")[name]
    # Envoy itself joins x-request-id; of the others the first counts.
    assert values in (["first"], ["first,second"])


@pytest.mark.parametrize("name", sorted(set(SINGLE_VALUE_HEADERS) - set(IDS)))
@pytest.mark.parametrize("given", [[], ["{};"]], ids=["absent", "empty"])
def test_other_headers_without_a_value_stay_away(edge: Edge, name: str, given: list[str]) -> None:
    assert name not in edge.seen(*(each.format(name) for each in given))


def test_caller_cannot_set_the_edges_own_headers(edge: Edge) -> None:
    seen = edge.seen(
        "x-envoy-max-retries: 5",
        "x-envoy-upstream-rq-timeout-ms: 1",
        "rrpa-plain-http: no",
        "rrpa-kept: no",
    )
    assert seen["rrpa-plain-http"] == ["1"]
    assert "rrpa-kept" not in seen
    assert {name for name in seen if name.startswith("x-envoy-")} <= {
        "x-envoy-original-path",
        "x-envoy-original-method",
    }


def test_timeout_in_a_callers_header_cuts_nothing(edge: Edge) -> None:
    reply = edge.post({"model": "x", "max_tokens": 4}, "-H", "x-envoy-upstream-rq-timeout-ms: 1")
    assert (reply.status, reply.exit_code) == (200, 0), reply


def test_ids_in_the_answer_are_the_sidecars(edge: Edge) -> None:
    reply = edge.post({"model": "x"}, "-H", "x-request-id: mine")
    assert reply.header("x-request-id") == ["from-the-sidecar"]
    assert not [line for line in reply.head if line.startswith("x-envoy-")]


def test_headers_beyond_the_limit_end_their_own_stream_only(edge: Edge) -> None:
    small = edge.post({"model": "x"}, "-H", f"x-padding: {'a' * 4000}")
    assert small.status == 200
    # More than gRPC takes, less than Envoy takes: the sidecar's server answers in words.
    medium = edge.post({"model": "x"}, "-H", f"x-padding: {'a' * 18000}")
    assert (medium.status, medium.exit_code) == (429, 0), medium
    assert "metadata" in medium.body
    large = edge.post({"model": "x"}, "-H", f"x-padding: {'a' * 40000}")
    assert large.exit_code != 0 or large.status == 431, large
    assert edge.post({"model": "x"}).status == 200
