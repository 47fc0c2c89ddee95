"""`latency` and `first-token`: what loads they choose, where parts run, what a row claims."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

import pytest

from benchmarks import first_token, latency, pinning
from benchmarks.latency import HEADLINE, PRODUCT, Case, Entry
from benchmarks.machine import machine
from benchmarks.measuring import Measurement
from benchmarks.result import Result, faults
from benchmarks.servers import PacedLoad, Running
from benchmarks.servers.product import _port
from benchmarks.spread import spread, times

SHARED = Case("50 %", "direct", "shared")


def entry(
    name: str, load: PacedLoad, *, p50: float, pace: float = 1.0, engine_us: float = 0.0
) -> Entry:
    """Return a server that was measured twice, with times in µs."""
    running = Running("unix:/nowhere", "grpc", {"server": 1}, "/", b"")
    made = Entry(latency._servers("shared")[name], load, running)
    for factor in (1.0, 1.2):
        times = dict.fromkeys((*latency.QUANTILES, "max"), p50 * factor)
        times["count"] = round(load.total_per_s * pace)
        report: dict[str, Any] = {"latency_us": times, "window_s": 1.0, "messages": 1}
        cpu_s = {"server": 0.5, "client": 0.1, "elsewhere": 0.0}
        cpu_s["engine"] = engine_us * times["count"] / 1e6
        made.found.append(Measurement(report, cpu_s, {}))
    return made


def reported(case: Case, entries: list[Entry]) -> dict[str, Any]:
    result = Result("latency", machine(), {"token": "5 bytes"})
    latency._report(case, entries, result)
    document = result.document()
    assert faults(document) == []
    return document


def test_a_share_of_a_core_is_reckoned_from_the_servers_own_cost() -> None:
    # 2.5 µs a token are 400,000 tokens/s of one core.
    capacity = {"server": 400_000.0, "others": 1e9}
    assert latency._load(SHARED, capacity).streams == 2000
    assert latency._load(Case("10 %", "direct", "shared"), capacity).streams == 400


def test_a_load_that_engine_and_client_cannot_make_is_the_largest_they_can() -> None:
    capacity = {"server": 400_000.0, "others": 100_000.0}
    assert latency._load(SHARED, capacity).streams == 1000
    assert latency._load(Case("50 %", "Envoy", "shared"), capacity).streams == 500


def test_ratios_compare_servers_at_one_load() -> None:
    load, half = PacedLoad(512, 100), PacedLoad(256, 100)
    entries = [
        entry(PRODUCT, load, p50=100),
        entry("grpc.aio", half, p50=300),
        entry(PRODUCT, half, p50=60),
    ]
    document = reported(Case(HEADLINE, "direct", "shared"), entries)
    assert document["ratios"] == {"grpc.aio, p50": 0.2, "grpc.aio, p99": 0.2}
    assert any("grpc.aio did not carry 512x100" in note for note in document["notes"])


@pytest.mark.parametrize(("pace", "carried"), [(0.97, True), (0.96, False)])
def test_a_queue_that_grows_has_no_ratio(pace: float, carried: bool) -> None:
    load = PacedLoad(100, 100)
    entries = [entry(PRODUCT, load, p50=100), entry("grpc.aio", load, p50=300, pace=pace)]
    document = reported(SHARED, entries)
    assert ("p50_ratio" in document["results"][1]) is carried
    assert bool(document["notes"]) is not carried


@pytest.mark.parametrize(("p50_ms", "carried"), [(83, True), (84, False)])
def test_a_queue_from_before_the_window_that_is_drained_in_it_has_no_ratio(
    p50_ms: float, carried: bool
) -> None:
    load = PacedLoad(100, 100)  # a step is 10 ms; the median of the two runs is 1.1 of p50
    late = entry("grpc.aio", load, p50=p50_ms * 1e3 * 1.2 / 1.1, pace=1.02)
    document = reported(SHARED, [entry(PRODUCT, load, p50=100), late])
    assert ("p50_ratio" in document["results"][1]) is carried
    assert bool(document["notes"]) is not carried


def test_p50_counts_from_the_steps_beginning_where_the_peers_does() -> None:
    load = PacedLoad(512, 100)
    names = (PRODUCT, "rrpa grpcio", "grpc.aio", "grpc.aio, handed")
    entries = [entry(name, load, p50=1000, engine_us=4.0) for name in names]
    document = reported(Case(HEADLINE, "direct", "shared"), entries)
    # Half a step is 512 × 4 µs / 2 = 1024 µs.
    found = {row["server"]: row["p50_ratio"]["runs"][0] for row in document["results"][1:]}
    assert found == {"rrpa grpcio": 1.0, "grpc.aio": 2.024, "grpc.aio, handed": 1.0}
    assert document["ratios"]["grpc.aio, p99"] == 1.0
    own = reported(Case(HEADLINE, "direct", "own"), entries)
    assert [row["p50_ratio"]["median"] for row in own["results"][1:]] == [1.0] * 3


def test_the_server_has_a_processor_for_itself_in_all_its_threads_and_children() -> None:
    servers, others = pinning.places()
    threads = "import threading, time; [threading.Thread(target=time.sleep, args=(60,), daemon=True"
    child = f"{threads}).start() for _ in range(3)]; print(flush=True); time.sleep(60)"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with ExitStack() as stack:
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        stack.enter_context(process)
        stack.callback(process.kill)
        assert process.stdout is not None
        process.stdout.readline()
        below = [pid for pid in pinning.tree(process.pid) if pid != process.pid]
        for pid in below:
            stack.callback(os.kill, pid, 9)
        for role, place in (("server", servers), ("engine", others)):
            pinning.pin({role: process.pid})
            for pid in (process.pid, *below):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    assert os.sched_getaffinity(int(thread)) == place
    assert len(below) == 1


def test_the_product_is_asked_at_the_port_that_it_says() -> None:
    line = "rrpa ready grpc=127.0.0.1:4711,[::1]:4711 engines=/e envoy=/v metrics=127.0.0.1:1"
    assert _port(line) == "127.0.0.1:4711"
    assert _port("rrpa ready grpc=127.0.0.1:4711 engines=/e") == "127.0.0.1:4711"


def test_first_token_names_its_questions() -> None:
    assert first_token.Question(8).name == "8 together"
    assert first_token.Question(0).name == "requests, 64 at a time"


def test_a_spread_in_another_unit_keeps_its_runs() -> None:
    assert times(spread([1500.0, 500.0]), 1e-3) == spread([1.5, 0.5])
