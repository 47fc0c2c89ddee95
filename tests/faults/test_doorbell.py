"""Every doorbell is lost: the sweeps find every token, and not much later."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rrpa_sidecar.pb import rrpa_pb2_grpc
from tests.conformance.callers import Request
from tests.faults.streams import channel
from tests.harness.processes import Daemon, ReplayEngine, Stack

SWEEP_S = 0.05
LONGEST_S = 0.2
"""Between two sweeps while nothing moves: four times the setting."""
TOKENS = 25
STREAMS = 8
PACE_S = 0.08
LATE_S = 0.15
"""For a machine that other tests use too; a token that no sweep finds waits for the next one."""


@pytest.fixture
def deaf() -> Iterator[Stack]:
    """A sidecar whose bell nobody can ring, and an engine that stamps its tokens."""
    with Stack({"sweep_interval_s": SWEEP_S}, engine=None) as running:
        daemon: Daemon = running.daemon
        os.unlink(f"{daemon.engine_socket}.bell")
        pace = {"tokens_per_second": 1 / PACE_S, "bytes_per_token": 1, "stamp": True}
        with ReplayEngine(daemon, capacity=STREAMS, **pace):
            yield running


def delays_of(call: Any) -> list[float]:
    """Return, for each token, how many seconds after its commit it came."""
    found = []
    for frame in call:
        now_ns = time.monotonic_ns()
        found += [(now_ns - int(stamp)) / 1e9 for stamp in frame.data.decode().split("x")[:-1]]
    return found


@pytest.mark.parametrize("door", ["grpcio", "batched"])
def test_without_any_bell_no_token_is_lost_and_none_waits_longer_than_the_sweeps(
    deaf: Stack, door: str
) -> None:
    daemon = deaf.daemon
    target = daemon.grpc_address if door == "grpcio" else f"unix:{daemon.envoy_socket}"
    with channel(target) as opened, ThreadPoolExecutor(STREAMS) as readers:
        stub = rrpa_pb2_grpc.RRPAServiceStub(opened)
        request = Request(model="test", prompt="echo:" + "x" * TOKENS)
        calls = [stub.CreateStream(request, timeout=30) for _ in range(STREAMS)]
        delays_s = list(readers.map(delays_of, calls))
    assert [len(each) for each in delays_s] == [TOKENS] * STREAMS
    every_s = [each for of_one in delays_s for each in of_one]
    print(f"median {statistics.median(every_s):.3f} s, most {max(every_s):.3f} s")
    assert statistics.median(every_s) > 0.002, "a bell was heard"
    assert statistics.median(every_s) < LONGEST_S
    assert max(every_s) < LONGEST_S + LATE_S
