"""What the figures claim: each division the right way round, and none from a load not carried."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import burst, first_token, measuring, paced, scale
from benchmarks.cpu import ELSEWHERE
from benchmarks.machine import machine
from benchmarks.measuring import Measurement, measure, notes_of_other_work
from benchmarks.plan import BenchmarkFailed
from benchmarks.result import Result
from benchmarks.servers import PacedLoad, Running

LOAD = PacedLoad(512, 100.0)
HALF = PacedLoad(256, 100.0)
WINDOW_S = 2.0
PRODUCT, PEER = paced.PRODUCT, "grpc.aio"


def measured(load: PacedLoad, us: float, *, pace: float = 1.0, **cpu_s: float) -> Measurement:
    """A window in which the server took `us` for each message; engine and Envoy 1 and 3."""
    messages = round(load.total_per_s * WINDOW_S * pace)
    used = {"server": us, "engine": 1.0, "envoy": 3.0, "client": 50.0, ELSEWHERE: 50.0}
    report = {
        "messages": messages,
        "bytes": messages * len(load.token),
        "window_s": WINDOW_S,
        "streams_open": load.streams,
    }
    cpu = {role: each * messages / 1e6 for role, each in used.items()}
    return Measurement(report, {**cpu, **cpu_s}, {"server": 2**20})


def test_cost_is_cpu_of_a_message_that_arrived_and_pace_is_what_came_of_what_was_due() -> None:
    found = measured(LOAD, 2.0)
    assert found.us_per_token("server") == pytest.approx(2)
    assert found.us_per_token("upstream") is None
    assert found.all_us_per_token() == pytest.approx(6), "not the client, and nobody else"
    assert found.cores("server") == pytest.approx(2e-6 * LOAD.total_per_s)
    assert found.pace(LOAD) == pytest.approx(1)
    assert found.delivered(LOAD) == pytest.approx(1)


def test_messages_lost_or_merged_make_a_server_dearer_and_never_cheaper() -> None:
    found = measured(LOAD, 2.0)
    merged = dataclasses.replace(
        found, report={**found.report, "messages": found.messages // 2}
    )  # of the same bytes
    assert merged.us_per_token("server") == pytest.approx(4)
    assert merged.pace(LOAD) == pytest.approx(0.5)
    assert merged.delivered(LOAD) == pytest.approx(1)
    events = dataclasses.replace(merged, protocol="sse")
    assert events.delivered(LOAD) == pytest.approx(0.5), "bytes of JSON are no tokens"


class FakeClient:
    """A load client that reports what the test says, and notes the order of things."""

    def __init__(self, report: dict[str, Any], order: list[str]) -> None:
        self._report = report
        self._order = order
        self.pid = 1

    def __call__(self, load: Any, workdir: Path, cpus: object) -> FakeClient:
        return self

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait_ready(self) -> None:
        self._order.append("ready")

    def begin(self) -> None:
        self._order.append("begin")

    def wait_end(self) -> None:
        self._order.append("end")

    def report(self) -> dict[str, Any]:
        self._order.append("report")
        return self._report


class FakeMeter:
    def __init__(self, order: list[str]) -> None:
        self._order = order

    def __call__(self, parts: dict[str, int]) -> FakeMeter:
        assert parts == {"server": 7, "client": 1}
        return self

    def start(self) -> None:
        self._order.append("start")

    def stop(self) -> dict[str, float]:
        self._order.append("stop")
        return {"server": 1.0}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"messages": 0}, "no message arrived"),
        ({"streams_open": 511}, "found 511"),
        ({"resets": 1}, "1 resets"),
        ({"goaways": 1}, "1 goaways"),
        ({"errors": {"wrong": 2}}, "2 wrong"),
    ],
)
def test_cpu_is_read_at_the_windows_edges_and_a_window_with_a_fault_is_no_figure(
    change: dict[str, Any], said: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clean = {"resets": 0, "goaways": 0, "errors": {}, "first_error": ""}
    order: list[str] = []
    report = {**measured(LOAD, 1).report, **clean, **change}
    monkeypatch.setattr(measuring, "LoadClient", FakeClient(report, order))
    monkeypatch.setattr(measuring, "CpuMeter", FakeMeter(order))
    monkeypatch.setattr(measuring, "tree_memory_bytes", lambda pid: {"rss": 1})
    monkeypatch.setattr(measuring, "lives", lambda pid: True)
    running = Running("unix:/nowhere", "grpc", {"server": 7}, "/", b"")
    if said is None:
        measure(running, LOAD, warm_s=1, seconds=WINDOW_S, workdir=tmp_path)
        assert order == ["ready", "begin", "start", "end", "stop", "report"]
    else:
        with pytest.raises(BenchmarkFailed, match=said):
            measure(running, LOAD, warm_s=1, seconds=WINDOW_S, workdir=tmp_path)


# --- paced ---------------------------------------------------------------------------------------


class FakeStarted:
    def __init__(self, name: str) -> None:
        self.server = paced.SERVERS[name]
        parts = {"server": 1, "engine": 2, "envoy": 3}
        self.running = Running("unix:/nowhere", "grpc", parts, "/", b"")


def entry(name: str, load: PacedLoad, us: float, pace: float = 1.0) -> paced.Entry:
    made = paced.Entry(FakeStarted(name), LOAD, load)  # type: ignore[arg-type]
    made.found = [measured(load, us * factor, pace=pace) for factor in (1.0, 2.0, 1.5)]
    return made


def reported(*entries: paced.Entry) -> dict[str, Any]:
    result = Result("paced", machine(), {})
    rounds: Any = SimpleNamespace(entries=entries, is_product=lambda it: it.server.name == PRODUCT)
    paced._report(rounds, result, headline=True)
    return result.document()


def test_paced_quotes_the_products_cost_divided_by_the_peers() -> None:
    document = reported(entry(PRODUCT, LOAD, 2), entry(PEER, LOAD, 20))
    assert document["ratios"] == {PEER: 0.1}
    (row,) = [row for row in document["results"] if row["server"] == PEER]
    assert row["ratio"]["runs"] == [0.1] * 3, "round by round"
    assert row["all_ratio"]["runs"][0] == pytest.approx(6 / 24)
    assert not document["notes"]


def test_of_two_ratios_of_a_peer_that_is_behind_paced_quotes_the_worse_for_the_product() -> None:
    entries = [
        entry(PRODUCT, LOAD, 2),
        entry(PEER, LOAD, 20, pace=0.9),
        entry(PRODUCT, HALF, 3),
        entry(PEER, HALF, 10),
    ]
    document = reported(*entries)
    assert document["ratios"] == {PEER: 0.3}
    assert reported(*reversed(entries))["ratios"] == {PEER: 0.3}
    assert any(
        f"{PEER} did not carry 512×100" in note and "90" in note for note in document["notes"]
    )


def test_a_product_that_is_behind_claims_nothing() -> None:
    entries = [
        entry(PRODUCT, LOAD, 1, pace=0.5),
        entry(PEER, LOAD, 20),
        entry(PRODUCT, HALF, 3),
    ]
    document = reported(*entries)
    assert document["ratios"] == {}
    assert any(f"{PRODUCT} did not carry 512×100" in note for note in document["notes"])


@pytest.mark.parametrize(
    ("paces", "carried"),
    [((0.97, 0.97, 0.97), True), ((0.96, 0.96, 1.0), False), ((0.5, 1.0, 1.0), True)],
)
def test_a_load_is_carried_if_97_percent_of_it_came_in_the_median_of_the_rounds(
    paces: tuple[float, ...], carried: bool
) -> None:
    made = entry(PEER, LOAD, 1)
    made.found = [measured(LOAD, 1, pace=pace) for pace in paces]
    assert made.carried is carried


@pytest.mark.parametrize(("cores", "noted"), [(0.15, False), (0.16, True)])
def test_a_machine_that_was_busy_with_something_else_is_noted(cores: float, noted: bool) -> None:
    rows = [{"elsewhere_cores": {"median": each}} for each in (0.0, cores, 0.1)]
    assert bool(notes_of_other_work(rows)) is noted


# --- scale ---------------------------------------------------------------------------------------


def sizes(pace: float = 1.0) -> list[scale.Size]:
    made = []
    for streams, us, rss_mib in ((1, 9.0, 40), (scale.SMALL, 4.0, 41), (scale.LARGE, 5.0, 48)):
        size = scale.Size(streams)
        found = measured(size.load, us, pace=pace if streams == scale.LARGE else 1.0)
        cpu_s = {"server0": found.cpu_s["server"] / 2, "server1": found.cpu_s["server"] / 2}
        found = dataclasses.replace(
            found,
            cpu_s={**cpu_s, "engine0": 1.0, "envoy": 1.0, ELSEWHERE: 0.0},
            rss_bytes={"server0": rss_mib * scale.MIB},
        )
        size.found.append(found)
        made.append(size)
    return made


def test_scale_divides_the_cost_at_2048_streams_by_that_at_256() -> None:
    result = Result("scale", machine(), {})
    scale._report(sizes(), result)
    assert result.document()["ratios"] == {"itself with 256 streams, at 2048": 1.25}
    assert result.notes == []
    assert [row["server_us"]["median"] for row in result.results] == [9, 4, 5], "of both workers"
    assert "kb_per_stream" not in result.results[0]
    assert result.results[2]["kb_per_stream"]["median"] == pytest.approx(8 * 1.048576 / 2.048, 0.01)


def test_scale_makes_no_ratio_of_a_size_that_is_behind() -> None:
    result = Result("scale", machine(), {})
    scale._report(sizes(pace=0.96), result)
    assert result.ratios == {}
    assert [row["carried"] for row in result.results] == [True, True, False]
    assert "2048 streams on 1 workers are behind" in result.notes[0]


# --- first-token ---------------------------------------------------------------------------------


def test_first_token_divides_cpu_by_the_calls_that_ended_and_the_product_by_the_peer() -> None:
    question, entries = first_token.Question(0), []
    for name, us in ((PRODUCT, 300.0), (PEER, 150.0)):
        quantiles = {"p50": us, "p99": 2 * us}
        times = dict.fromkeys(("first_us", "first_in_us", "first_out_us"), quantiles)
        report = {"ended": 1000, "messages": 4000, "window_s": WINDOW_S, **times}
        cpu_s = {"server": us * 1000 / 1e6, "client": 9.0, ELSEWHERE: 0.0}
        running = Running("unix:/nowhere", "grpc", {"server": 1}, "/", b"")
        made = first_token.Entry(first_token.SERVERS[name], running)
        made.found[question] = [Measurement(report, cpu_s, {})]
        entries.append(made)
    result = Result("first-token", machine(), {})
    first_token._report(question, "direct", entries, result)
    ours, theirs = result.results
    assert (ours["server_us"]["median"], theirs["server_us"]["median"]) == (300, 150)
    assert theirs["server_ratio"]["median"] == theirs["p50_ratio"]["median"] == 2
    assert result.ratios == {f"{PEER}, CPU of a call": 2.0}, "the peer is cheaper, and it is said"
    assert ours["calls_per_s"]["median"] == 500


# --- burst ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ended", "size", "whole"), [(4, 400, True), (3, 400, False), (4, 399, False), (0, 0, False)]
)
def test_burst_counts_only_answers_that_came_whole(ended: int, size: int, whole: bool) -> None:
    report = {"total": {"ended": ended, "bytes": size}, "window_s": 600.0}
    if whole:
        assert burst.whole_bytes(report, 4, 100) == 400
    else:
        with pytest.raises(BenchmarkFailed, match="expected 4 whole answers of 100 bytes"):
            burst.whole_bytes(report, 4, 100)


def test_bursts_text_has_characters_of_every_length_and_makes_answers_long_enough() -> None:
    text = burst.pattern()
    assert {len(each.encode()) for each in text.decode()} == {1, 2, 3, 4}
    for size in (burst.FULL, burst.QUICK):
        assert 0 <= burst.repeats(size, text) * len(text) - size.answer_bytes < len(text)
