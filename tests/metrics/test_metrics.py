"""Counters: bounded, never negative, present at 0."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from rrpa_sidecar.metrics import (
    BUCKETS_S,
    ERROR_WINDOW_S,
    MODEL_LIMIT,
    SEGMENT_KINDS,
    SERVER_SIDE,
    Metrics,
)
from rrpa_sidecar.shm import layout
from rrpa_sidecar.status import Code

FIXED_NAMES = {
    "rrpa_shm_utilization_percent",
    "rrpa_stream_queue_length",
    "rrpa_grpc_error_rate",
    "rrpa_active_streams",
    "rrpa_engines_attached",
    "rrpa_shm_budget_bytes",
    "rrpa_shm_free_bytes",
    "rrpa_streams_resumed_total",
    "rrpa_streams_adopted_total",
    *(f'rrpa_shm_reclaimed_total{{kind="{kind}"}}' for kind in ("log", "table", "temporary")),
}


class JumpingClock:
    def __init__(self) -> None:
        self.ns = 1_000_000_000_000

    def now_ns(self) -> int:
        return self.ns

    def jump_s(self, seconds: float) -> None:
        self.ns += int(seconds * 1e9)


class FixedGauges:
    """Every gauge has one value."""

    def __init__(self, value: int = 0, budget: int = 100) -> None:
        self.value, self.budget = value, budget

    def active_streams(self) -> int:
        return self.value

    def queue_length(self) -> int:
        return self.value

    def engines(self) -> int:
        return self.value

    def stalled_streams(self) -> int:
        return self.value

    def shm_used_bytes(self) -> int:
        return self.value

    def shm_budget_bytes(self) -> int:
        return self.budget

    def shm_free_bytes(self) -> int:
        return self.value


def scrape(metrics: Metrics) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(metrics)
    lines = generate_latest(registry).decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


@pytest.fixture
def metrics() -> Metrics:
    made = Metrics(JumpingClock())
    made.gauges = FixedGauges()
    return made


def test_every_fixed_label_set_is_there_at_0_before_any_traffic(metrics: Metrics) -> None:
    metrics.add_model("test")
    found = scrape(metrics)
    for model in ("test", "other"):
        for code in Code:
            assert found[f'rrpa_streams_total{{code="{code.name}",model="{model}"}}'] == 0
        for name in ("stream_bytes", "frames", "replaced_characters"):
            assert found[f'rrpa_{name}_total{{model="{model}"}}'] == 0
        for name in ("first_token_latency", "engine_first_token", "inter_token", "queue_wait"):
            assert found[f'rrpa_{name}_seconds_count{{model="{model}"}}'] == 0
    assert set(found) >= FIXED_NAMES
    assert all(found[name] == 0 for name in FIXED_NAMES if "_total" in name)


def test_what_outlived_a_process_is_counted_for_the_whole_sidecar(metrics: Metrics) -> None:
    metrics.totals.streams_resumed += 3
    metrics.totals.streams_adopted += 2
    metrics.totals.reclaimed["table"] += 1
    found = scrape(metrics)
    assert found["rrpa_streams_resumed_total"] == 3
    assert found["rrpa_streams_adopted_total"] == 2
    assert found['rrpa_shm_reclaimed_total{kind="table"}'] == 1
    assert found['rrpa_shm_reclaimed_total{kind="log"}'] == 0


def test_kinds_of_files_are_those_that_their_names_tell() -> None:
    zeros = "0" * 32
    names = (layout.log_name(zeros), layout.table_name(zeros), layout.temporary_name(zeros, 1))
    assert tuple(map(layout.kind_of, names)) == SEGMENT_KINDS


def test_a_gauge_at_0_is_exported_as_0_and_one_below_0_never(metrics: Metrics) -> None:
    found = scrape(metrics)
    assert found["rrpa_active_streams"] == found["rrpa_shm_utilization_percent"] == 0
    metrics.gauges = FixedGauges(-1)
    assert all(value >= 0 for value in scrape(metrics).values())


def test_a_gauge_that_cannot_be_read_is_absent_and_the_rest_is_there(metrics: Metrics) -> None:
    class Broken(FixedGauges):
        def shm_free_bytes(self) -> int:
            raise OSError("gone")

    metrics.gauges = Broken()
    found = scrape(metrics)
    assert "rrpa_shm_free_bytes" not in found
    assert found["rrpa_active_streams"] == 0


def test_utilization_is_a_share_of_the_budget_in_percent(metrics: Metrics) -> None:
    metrics.gauges = FixedGauges(85, budget=100)
    assert scrape(metrics)["rrpa_shm_utilization_percent"] == 85


def test_50_000_model_names_from_callers_make_no_series(metrics: Metrics) -> None:
    for at in range(MODEL_LIMIT):
        metrics.add_model(f"{at:03d}" + "x" * 125)
    before = set(scrape(metrics))
    for at in range(50_000):
        metrics.model(f"made-up-{at}").stream_ended(Code.NOT_FOUND)
    found = scrape(metrics)
    assert set(found) == before
    assert found['rrpa_streams_total{code="NOT_FOUND",model="other"}'] == 50_000


def test_the_largest_page_there_can_be_is_small_and_fast(metrics: Metrics) -> None:
    for at in range(2 * MODEL_LIMIT):
        metrics.add_model(f"{at:03d}" + "x" * 125)
    registry = CollectorRegistry()
    registry.register(metrics)
    took_s = []
    for _ in range(5):
        begin_s = time.perf_counter()
        page = generate_latest(registry)
        took_s.append(time.perf_counter() - begin_s)
    print(f"{len(page)} bytes, {min(took_s) * 1000:.0f} ms")
    assert len(page) < 1_000_000
    assert min(took_s) < 0.2


def test_models_above_the_limit_are_counted_as_other(metrics: Metrics) -> None:
    for at in range(MODEL_LIMIT + 1):
        metrics.add_model(f"m{at}")
    metrics.model("m0").frame(1)
    metrics.model(f"m{MODEL_LIMIT}").frame(1)
    found = scrape(metrics)
    assert found['rrpa_frames_total{model="m0"}'] == 1
    assert found['rrpa_frames_total{model="other"}'] == 1


def test_a_place_is_taken_only_from_a_model_that_nobody_serves(metrics: Metrics) -> None:
    for at in range(MODEL_LIMIT):
        metrics.add_model(f"m{at}")
    metrics.add_model("m1")
    metrics.remove_model("m1")  # one of its two engines
    metrics.remove_model("m2")
    metrics.model("m2").frame(1)  # still counted: a late frame of its last stream
    assert scrape(metrics)['rrpa_frames_total{model="m2"}'] == 1
    metrics.add_model("new")
    found = scrape(metrics)
    assert 'rrpa_frames_total{model="m2"}' not in found
    assert found['rrpa_frames_total{model="m1"}'] == found['rrpa_frames_total{model="new"}'] == 0


def test_removing_a_model_twice_does_no_harm(metrics: Metrics) -> None:
    metrics.add_model("m")
    metrics.remove_model("m")
    metrics.remove_model("m")
    metrics.add_model("m")
    assert scrape(metrics)['rrpa_frames_total{model="m"}'] == 0


@pytest.mark.parametrize("bound", BUCKETS_S)
def test_a_duration_lands_in_the_bucket_that_includes_it(bound: float) -> None:
    metrics = Metrics()
    handle = metrics.model("x")
    handle.first_token(bound)
    handle.first_token(bound + 1e-6)
    found = scrape(metrics)
    name = "rrpa_first_token_latency_seconds"
    assert found[f'{name}_bucket{{le="{bound}",model="other"}}'] == 1
    assert found[f'{name}_bucket{{le="+Inf",model="other"}}'] == 2
    assert found[f'{name}_count{{model="other"}}'] == 2
    assert found[f'{name}_sum{{model="other"}}'] == pytest.approx(2 * bound, abs=1e-5)


def test_buckets_reach_from_1_ms_to_300_s() -> None:
    assert (BUCKETS_S[0], BUCKETS_S[-1]) == (0.001, 300)
    assert list(BUCKETS_S) == sorted(set(BUCKETS_S))


def test_a_negative_duration_counts_as_0() -> None:
    metrics = Metrics()
    metrics.model("x").inter_token(-1)
    found = scrape(metrics)
    assert found['rrpa_inter_token_seconds_bucket{le="0.001",model="other"}'] == 1
    assert found['rrpa_inter_token_seconds_sum{model="other"}'] == 0


def test_error_rate_is_the_share_of_the_last_minute_and_forgets_at_its_end() -> None:
    clock = JumpingClock()
    metrics = Metrics(clock)
    assert metrics.error_rate() == 0
    metrics.model("x").stream_ended(Code.INTERNAL)
    for _ in range(3):
        metrics.model("x").stream_ended(Code.OK)
    assert metrics.error_rate() == 0.25
    clock.jump_s(ERROR_WINDOW_S - 1)
    metrics.model("x").stream_ended(Code.OK)
    assert metrics.error_rate() == 0.2
    clock.jump_s(1)
    assert metrics.error_rate() == 0
    clock.jump_s(10 * ERROR_WINDOW_S)
    assert metrics.error_rate() == 0


@pytest.mark.parametrize("code", list(Code))
def test_callers_mistakes_and_refusals_are_no_errors_of_this_side(code: Code) -> None:
    metrics = Metrics()
    metrics.model("x").stream_ended(code)
    assert metrics.error_rate() == (code in SERVER_SIDE)
    assert Code.RESOURCE_EXHAUSTED not in SERVER_SIDE
    assert Code.INVALID_ARGUMENT not in SERVER_SIDE
    assert Code.INTERNAL in SERVER_SIDE


def test_counters_of_frames_bytes_and_replacements_add_up(metrics: Metrics) -> None:
    handle = metrics.model("x")
    handle.frame(3)
    handle.frame(0)
    handle.replaced(2)
    found = scrape(metrics)
    assert found['rrpa_frames_total{model="other"}'] == 2
    assert found['rrpa_stream_bytes_total{model="other"}'] == 3
    assert found['rrpa_replaced_characters_total{model="other"}'] == 2


def test_a_multiprocess_directory_in_the_environment_does_no_harm(short_dir: Path) -> None:
    code = (
        "import socket, urllib.request\n"
        "from rrpa_sidecar.metrics import Metrics\n"
        "from rrpa_sidecar.sidecar.metrics_server import MetricsServer\n"
        "bound = socket.socket(); bound.bind(('127.0.0.1', 0))\n"
        "metrics = Metrics(); metrics.model('x').frame(1)\n"
        "server = MetricsServer(metrics, [bound]); server.start()\n"
        "url = 'http://127.0.0.1:%d/metrics' % bound.getsockname()[1]\n"
        "for _ in range(2):\n"
        "    page = urllib.request.urlopen(url, timeout=10).read().decode()\n"
        "    assert 'rrpa_frames_total{model=\"other\"} 1.0' in page, page\n"
        "    assert 'process_start_time_seconds' in page\n"
        "server.close()\n"
    )
    environ = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(short_dir)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not list(short_dir.iterdir())
