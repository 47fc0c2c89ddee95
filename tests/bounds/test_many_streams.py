"""Thousands of streams at once, and the open files they need."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import TypeVar

import pytest

from rrpa_sidecar.config import Config
from rrpa_sidecar.sidecar.open_files import needed
from tests.harness.paced_reader import STAMPED_TEXT, Plan, Readers
from tests.harness.processes import Daemon, Process, ProcessFailed, ReplayEngine, Stack, eventually

STREAM_BYTES = 256 * 1024
STREAMS = 2000
MEMORY_BYTES = 20_000
"""Of the sidecar for each open stream; 3,900 with 10,000 of them."""


Running = TypeVar("Running", bound=Process)


def with_files(process: Running, hard: int, soft: int = 100) -> Running:
    """Let `process` start with these limits of open files."""
    shell = f'ulimit -Hn {hard} && ulimit -Sn {soft} && exec "$0" "$@"'
    # The soft limit first: it may not be above the hard one.
    process.argv = ["sh", "-c", f"ulimit -Sn {soft} && {shell}", *process.argv]
    return process


def limits_of(process: Process) -> tuple[int, int]:
    return resource.prlimit(process.pid, resource.RLIMIT_NOFILE)


@pytest.mark.timeout(60)
def test_2000_streams_open_deliver_and_end_and_nothing_is_left(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(STAMPED_TEXT)
    engine = {"capacity": STREAMS, "model": "stamped", "stamp": True, "text_file": text}
    daemon = {"stream_bytes": STREAM_BYTES, "shm_bytes": STREAMS * STREAM_BYTES}
    with Stack(daemon=daemon, engine={**engine, "tokens_per_second": 2}) as stack:
        before, files = stack.daemon.rss_bytes(), len(stack.daemon.descriptors())
        plan = Plan(stack.daemon.envoy_socket, stamped_calls=STREAMS, stamped_tokens=10)
        with Readers([plan], 50) as readers:
            eventually(lambda: stack.daemon.metric("rrpa_active_streams") == STREAMS, 10)
            eventually(lambda: len(stack.daemon.descriptors()) >= files + STREAMS, 10)
            assert stack.daemon.rss_bytes() - before < STREAMS * MEMORY_BYTES
            report = readers.result(50)
        assert (report.faults, report.resets, report.goaways) == ([], 0, [])
        assert report.finished == STREAMS
        assert len(report.delays_ns) == STREAMS * 10
        eventually(lambda: stack.daemon.segments() == [], what="no log stays")
        eventually(lambda: len(stack.daemon.descriptors()) <= files + 2, what="no file is open")
        assert stack.daemon.metric("rrpa_active_streams") == 0
        assert stack.daemon.metric("rrpa_shm_utilization_percent") == 0


def test_daemon_refuses_to_start_with_fewer_open_files_than_its_streams_need() -> None:
    sizes = {"stream_bytes": STREAM_BYTES, "shm_bytes": 300 * STREAM_BYTES}
    need = needed(Config.load({name: str(value) for name, value in sizes.items()}))
    with with_files(Daemon(**sizes), need) as daemon:
        assert limits_of(daemon) == (need, need)
    refused = with_files(Daemon(**sizes), need - 1)
    with pytest.raises(ProcessFailed):
        refused.start()
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    for part in (f"{need - 1} files", "ulimit -Hn", "300 streams", f"need {need}", "--shm-bytes"):
        assert part in line


def test_engine_raises_its_limit_of_open_files_or_refuses_to_start() -> None:
    with Daemon(stream_bytes=STREAM_BYTES) as daemon:
        with with_files(ReplayEngine(daemon, capacity=100), 264) as engine:
            assert limits_of(engine) == (264, 264)
        refused = with_files(ReplayEngine(daemon, capacity=100), 263)
        with pytest.raises(ProcessFailed):
            refused.start()
        (line,) = (each for each in refused.stderr.splitlines() if each.startswith("rrpa:"))
        assert "100 streams (--capacity) need 264" in line
