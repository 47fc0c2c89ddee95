"""What the daemon costs while nothing happens, and how fast it starts (P9)."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import grpc
import pytest

from rrpa_sidecar.pb import rrpa_pb2_grpc
from tests.conformance.asking import replay
from tests.harness.processes import Daemon, Stack, eventually

IDLE_STREAMS = 500
IDLE_RSS_LIMIT_BYTES = 60_000_000
STREAM_RSS_LIMIT_BYTES = 40_000
"""Measured: 26 kB for each open call, nearly all of it gRPC's."""
CPU_LIMIT_SHARE = 0.005
WATCH_S = 5
START_LIMIT = 3.0
KIB = 1024

pytestmark = pytest.mark.alone


def test_idle_daemon_stays_under_60_mb_and_half_a_percent_of_cpu_with_500_idle_streams() -> None:
    daemon = {"stream_bytes": 128 * KIB, "shm_bytes": 128 * KIB * 600}
    with (
        Stack(daemon, engine={"capacity": IDLE_STREAMS}) as stack,
        grpc.insecure_channel(stack.daemon.grpc_address) as channel,
    ):
        stub = rrpa_pb2_grpc.RRPAServiceStub(channel)
        assert list(stub.CreateStream(replay([b"once"]), timeout=20))
        assert stack.daemon.metrics()
        base = stack.daemon.rss_bytes()  # idle again, with all that is loaded at first use
        request = replay([b"never"], delay_s=300)
        calls = [stub.CreateStream(request, timeout=300) for _ in range(IDLE_STREAMS)]
        eventually(
            lambda: stack.daemon.metric("rrpa_active_streams") == IDLE_STREAMS,
            timeout_s=30,
            what="all streams are open",
        )
        before, began = stack.daemon.cpu_s(), time.monotonic()
        time.sleep(WATCH_S)  # CPU can only be measured over real time
        share = (stack.daemon.cpu_s() - before) / (time.monotonic() - began)
        rss = stack.daemon.rss_bytes()
        print(f"idle: {share:.2%} of a core, {rss / 1e6:.1f} MB, {base / 1e6:.1f} MB before")
        for call in calls:
            call.cancel()
        eventually(lambda: stack.daemon.metric("rrpa_active_streams") == 0, 10)
    assert base < IDLE_RSS_LIMIT_BYTES
    assert rss - base < IDLE_STREAMS * STREAM_RSS_LIMIT_BYTES
    assert share < CPU_LIMIT_SHARE


def test_daemon_is_ready_within_3_times_its_imports() -> None:
    """Side by side, in turns: a busy machine slows both."""
    imports = [sys.executable, "-c", "import grpc.aio, uvloop, prometheus_client"]
    ratios = []
    for _ in range(5):
        began = time.monotonic()
        subprocess.run(imports, check=True)
        base_s = time.monotonic() - began
        began = time.monotonic()
        with Daemon():
            ready_s = time.monotonic() - began
        ratios.append(ready_s / base_s)
        print(f"imports {base_s:.3f} s, ready {ready_s:.3f} s")
    assert statistics.median(ratios) < START_LIMIT, ratios
