"""Answers that are there at once, and callers that read slowly, late, or not at all."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pytest
import yaml

from tests.harness.envoy import Envoy
from tests.harness.paced_reader import STAMPED_TEXT, Plan, Readers, Report
from tests.harness.processes import Process, ReplayEngine, Stack, eventually

MIB = 1024 * 1024
STREAMS, ANSWER_BYTES = 20, 16_000_000
PACE_BYTES_PER_S = 5e6  # a slow caller's: 16 MB take it 3.2 s
LARGE_WINDOW = 2**30
"""Such a caller gives no window back for minutes; only its socket is full."""

SOCKET_BYTES = 65_536
GROWTH_BYTES = 8e6
"""With 20 or 100 streams; it was 0.2 to 3 MB."""

MEDIAN_S, DELAY_S = 0.1, 0.5
"""The normal caller's median and p99 may be this in any case. Behind one that stands still it would
be 3 s; without anybody beside it, p99 was 40 ms on a machine of 2 cores that others used too. The
ratio on a quiet one: `python -m benchmarks burst`."""


@contextmanager
def peak_of(process: Process) -> Iterator[list[int]]:
    """Yield a list whose one number becomes the most memory that `process` had meanwhile."""
    peak, over = [process.rss_bytes()], threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            peak[0] = max(peak[0], process.rss_bytes())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def assert_all_right(report: Report, calls: int) -> None:
    """Every byte was right and came in order, every call has its Finish, nothing was reset."""
    assert (report.faults, report.resets, report.goaways) == ([], 0, [])
    assert report.finished == report.calls == calls


@pytest.fixture
def stamped_text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_bytes(STAMPED_TEXT)
    return path


@pytest.fixture
def stack(stamped_text: Path) -> Iterator[Stack]:
    """One engine that writes all it has at once, and one with 100 stamped tokens a second."""
    sizes = {"stream_bytes": 18 * MIB, "shm_bytes": 40 * 18 * MIB}
    stamped = {"model": "stamped", "stamp": True, "text_file": stamped_text}
    with (
        Stack(daemon=sizes, engine={"capacity": STREAMS, "model": "burst"}, envoy=True) as stack,
        ReplayEngine(stack.daemon, **stamped),
    ):
        eventually(stack.envoy.is_healthy, what="Envoy finds the sidecar healthy")
        yield stack


def plans(address: str, ca: str) -> list[Plan]:
    """Half of the callers read slowly, half stop after 0.1 s and begin again at 3 s; of each half
    one half has large windows."""
    made = []
    for seed in range(STREAMS):
        plan = Plan(address, ca, seeds=(seed,), total_bytes=ANSWER_BYTES)
        if seed % 2:
            plan.window = LARGE_WINDOW
        if seed % 4 < 2:
            plan.bytes_per_s = PACE_BYTES_PER_S
        else:
            plan.pause_s = (0.1, 3.0)
        made.append(plan)
    return made


@pytest.mark.timeout(90)
def test_what_is_written_at_once_reaches_slow_callers_whole_and_waits_in_the_log(
    stack: Stack,
) -> None:
    address, ca = stack.envoy.address, stack.envoy.ca
    normal = Plan(address, ca, stamped_calls=4, stamped_tokens=800)
    with Readers([normal], 60) as beside:
        alone_ns = time.monotonic_ns()
        time.sleep(1.5)  # the normal caller's delays before there are others
        before = stack.daemon.rss_bytes()
        with peak_of(stack.daemon) as peak, Readers(plans(address, ca), 60) as slow:
            begun_ns = time.monotonic_ns()
            report = slow.result(60)
        over_ns = time.monotonic_ns()
        assert_all_right(report, STREAMS)
        assert report.answer_bytes >= STREAMS * ANSWER_BYTES
        assert report.seconds > 3, "they were slow"
        assert peak[0] - before < GROWTH_BYTES
        normally = beside.result(60)
    assert_all_right(normally, 4)
    alone = normally.delays_between(alone_ns, begun_ns)
    among = normally.delays_between(begun_ns, over_ns)
    assert len(alone) > 300
    assert len(among) > 600
    assert p99(among) < max(2 * p99(alone), DELAY_S), (p99(alone), p99(among))
    assert median(among) < max(2 * median(alone), MEDIAN_S), (median(alone), median(among))
    eventually(lambda: stack.daemon.segments() == [], what="no log stays")


def p99(values: list[float]) -> float:
    return values[int(0.99 * (len(values) - 1))]


def with_small_socket_buffers(envoy: Envoy) -> Envoy:
    """Let what waits for a caller wait in Envoy, where it is counted, not in 4 MB of the kernel."""
    tree = yaml.safe_load(envoy.written.config.read_text())
    option = {"level": socket.SOL_SOCKET, "name": socket.SO_SNDBUF, "int_value": SOCKET_BYTES}
    tree["static_resources"]["listeners"][0]["socket_options"] = [option]
    envoy.written.config.write_text(yaml.safe_dump(tree))
    return envoy


@pytest.mark.timeout(60)
def test_a_caller_that_stands_still_amid_small_tokens_trips_no_flood_limit(
    stamped_text: Path,
) -> None:
    """Each token is a frame. Envoy's limit of 10,000 waiting frames ended the connection."""
    streams, tokens = 100, 600
    engine = {"capacity": streams, "model": "stamped", "stamp": True, "text_file": stamped_text}
    daemon = {"stream_bytes": "256KiB", "shm_bytes": streams * 256 * 1024}
    with (
        Stack(daemon=daemon, engine={**engine, "tokens_per_second": 200}) as stack,
        with_small_socket_buffers(Envoy(stack.daemon)) as envoy,
    ):
        before = stack.daemon.rss_bytes()
        plan = Plan(envoy.address, envoy.ca, stamped_calls=streams, stamped_tokens=tokens)
        plan.window, plan.receive_buffer = LARGE_WINDOW, SOCKET_BYTES
        plan.pause_s = (0.2, 2.7)
        with peak_of(stack.daemon) as peak, Readers([plan], 50) as readers:
            report = readers.result(50)
        assert_all_right(report, streams)
        assert len(report.delays_ns) == streams * tokens
        assert "http2.outbound_flood: 0" in envoy.admin("/stats?filter=http2.outbound_flood")
        assert peak[0] - before < GROWTH_BYTES
