"""Metrics of the whole product (O1, field-bugs.md G54, G57, G58)."""

from __future__ import annotations

import concurrent.futures
import contextlib
import random
import time
import urllib.request
from typing import Any

import grpc
import pytest

from rrpa_sidecar.status import Code
from tests.conformance.asking import replay
from tests.conformance.callers import GrpcCaller, Request
from tests.harness.processes import Stack, eventually

MARK = "\N{REPLACEMENT CHARACTER}".encode()


@pytest.fixture(scope="module")
def fresh() -> object:
    """A stack that nobody has asked anything."""
    with Stack(engine={"capacity": 4}) as running:
        yield running


@pytest.fixture(scope="module")
def fresh_caller(fresh: Stack) -> object:
    made = GrpcCaller("grpcio, TCP", fresh.daemon.grpc_address)
    yield made
    made.close()


def test_all_fixed_series_exist_at_0_before_any_traffic(fresh: Stack) -> None:
    found = fresh.daemon.metrics()
    for code in Code:
        assert fresh.daemon.metric("rrpa_streams_total", model="test", code=code.name) == 0
        assert fresh.daemon.metric("rrpa_streams_total", model="other", code=code.name) == 0
    for name in ("rrpa_shm_utilization_percent", "rrpa_stream_queue_length"):
        assert found[name] == 0
    for name in ("rrpa_grpc_error_rate", "rrpa_active_streams"):
        assert found[name] == 0
    for name in ("stream_bytes", "frames", "replaced_characters"):
        assert fresh.daemon.metric(f"rrpa_{name}_total", model="test") == 0
    for name in ("first_token_latency", "engine_first_token", "inter_token", "queue_wait"):
        assert fresh.daemon.metric(f"rrpa_{name}_seconds_count", model="test") == 0
    assert found["rrpa_engines_attached"] == 1
    assert found["process_start_time_seconds"] > 0


def test_a_stream_is_counted_once_in_every_metric(fresh: Stack, fresh_caller: GrpcCaller) -> None:
    names = ["rrpa_stream_bytes_total", "rrpa_first_token_latency_seconds_count"]
    names += ["rrpa_engine_first_token_seconds_count", "rrpa_queue_wait_seconds_count"]
    before = {name: fresh.daemon.metric(name, model="test") for name in names}
    ok = fresh.daemon.metric("rrpa_streams_total", model="test", code="OK")
    fresh_caller.ask(replay([b"four", b"", b"more"], between_s=0.02))
    after = {name: fresh.daemon.metric(name, model="test") - before[name] for name in names}
    assert after == dict(zip(names, [8, 1, 1, 1], strict=True))
    assert fresh.daemon.metric("rrpa_streams_total", model="test", code="OK") == ok + 1


def test_first_token_is_the_clients_time_and_its_parts_are_told_apart(
    fresh: Stack, fresh_caller: GrpcCaller
) -> None:
    """The fifth of five waits 0.4 s for one of 4 slots, then 0.3 s for the engine."""

    def sums() -> dict[str, float]:
        names = ["first_token_latency", "engine_first_token", "queue_wait", "inter_token"]
        return {
            name: fresh.daemon.metric(f"rrpa_{name}_seconds_sum", model="test") for name in names
        }

    def first_token_s(call: Any, began_s: float) -> float:
        next(call)
        return time.monotonic() - began_s

    before, calls, began = sums(), [], []
    for at in range(5):
        began.append(time.monotonic())
        request = replay([b"a", b"b"], delay_s=0.4 if at < 4 else 0.3, between_s=0.02)
        calls.append(fresh_caller.stub.CreateStream(request, timeout=20))
        calls[-1].initial_metadata()  # accepted, so the fifth is the one that waits
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        seen = sum(pool.map(first_token_s, calls, began))
    for call in calls:
        assert b"".join(frame.data for frame in call) == b"b"
    after = sums()
    first, engine, queue, gaps = (after[name] - before[name] for name in after)
    print(f"at the client {seen:.3f} s, {first=:.3f} {engine=:.3f} {queue=:.3f} {gaps=:.3f}")
    assert 4 * 0.4 + 0.3 <= engine < first - 0.3
    assert 0.3 < queue <= first - engine
    # The server looks at its clock when the frame is handed over: on a busy machine a bit later.
    assert engine + queue <= first <= seen + 0.1
    assert 5 * 0.02 * 0.5 < gaps < 5 * 0.02 + 1


def test_an_answer_without_a_token_has_no_first_token(
    fresh: Stack, fresh_caller: GrpcCaller
) -> None:
    name = "rrpa_first_token_latency_seconds_count"
    before = fresh.daemon.metric(name, model="test")
    fresh_caller.ask(replay([]))
    fresh_caller.ask(replay([b"", b""]))
    assert fresh.daemon.metric(name, model="test") == before


def test_nothing_a_caller_sends_makes_a_new_series(fresh: Stack, fresh_caller: GrpcCaller) -> None:
    before = set(fresh.daemon.metrics())
    other = fresh.daemon.metric("rrpa_streams_total", model="other", code="NOT_FOUND")
    for n in range(1000):
        metadata = [("x-request-id", f"request-{n}"), ("x-stream-id", f"stream-{n}")]
        fresh_caller.ask(Request(model=f"model-{n}"), metadata)
    assert set(fresh.daemon.metrics()) == before
    got = fresh.daemon.metric("rrpa_streams_total", model="other", code="NOT_FOUND")
    assert got - other == 1000
    began = time.monotonic()
    with urllib.request.urlopen(fresh.daemon.metrics_url, timeout=10) as answer:
        page = answer.read()
    assert len(page) < 1_000_000
    assert time.monotonic() - began < 0.2


def test_counts_are_what_callers_received(
    stack: Stack, grpc_caller: GrpcCaller, seeded: random.Random
) -> None:
    """Frames, bytes, replaced characters and times, whatever way each token took."""
    names = ("frames_total", "stream_bytes_total", "replaced_characters_total")
    names += ("first_token_latency_seconds_count", "inter_token_seconds_count")

    def counts() -> list[float]:
        return [stack.daemon.metric(f"rrpa_{name}", model="test") for name in names]

    def token() -> bytes:
        text = "a word €😀".encode()
        return seeded.choice(
            [text[: seeded.randrange(12)], text[-3:], seeded.randbytes(5), b"\xff" * 5000]
        )

    answers = [[token() for _ in range(40)] for _ in range(24)]
    before = counts()
    got = grpc_caller.ask_all([replay(tokens, between_s=0.002) for tokens in answers])
    frames = [[frame for frame in answer.frames if frame.data] for answer in got]
    written = [b"".join(tokens) for tokens in answers]
    assert [answer.data for answer in got] == [_as_text(raw) for raw in written]
    wanted = [
        sum(map(len, frames)),
        sum(len(answer.data) for answer in got),
        sum(_as_text(raw).count(MARK) - raw.count(MARK) for raw in written),
        sum(map(bool, frames)),
        sum(max(len(each) - 1, 0) for each in frames),
    ]
    assert [now - then for now, then in zip(counts(), before, strict=True)] == wanted


def _as_text(raw: bytes) -> bytes:
    return raw.decode("utf-8", "replace").encode()


def test_gauges_are_exactly_0_after_every_kind_of_ending(
    fresh: Stack, fresh_caller: GrpcCaller, seeded: random.Random
) -> None:
    before = fresh.daemon.metric("rrpa_streams_total")
    count = 300
    for _ in range(count):
        match seeded.randrange(6):
            case 0:
                fresh_caller.ask(replay([b"fine"]))
            case 1:
                fresh_caller.ask(replay([b"breaks"], code=13, text="broke"))
            case 2:
                fresh_caller.ask(Request(model="nobody"))
            case 3:
                call = fresh_caller.stub.CreateStream(replay([b"x"], delay_s=5))
                call.cancel()
            case 4:
                call = fresh_caller.stub.CreateStream(replay([b"x"] * 99, between_s=0.01))
                with contextlib.suppress(grpc.RpcError):
                    next(call)
                call.cancel()
                call.cancel()
            case 5:
                call = fresh_caller.stub.CreateStream(replay([b"x"], delay_s=5), timeout=0.01)
                with contextlib.suppress(grpc.RpcError):
                    list(call)
    for name in ("rrpa_active_streams", "rrpa_stream_queue_length", "rrpa_shm_utilization_percent"):
        eventually(lambda name=name: fresh.daemon.metric(name) == 0, what=f"{name} is 0")
    # Calls that never left the client (a deadline of 10 ms) are nobody's streams.
    counted = fresh.daemon.metric("rrpa_streams_total") - before
    assert count * 0.6 < counted <= count
