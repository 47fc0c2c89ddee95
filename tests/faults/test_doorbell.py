"""Every doorbell is lost: the sweeps find every token, and not much later."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from rrpa_sidecar.control.pump import LONGEST_FACTOR
from rrpa_sidecar.pb import rrpa_pb2_grpc
from tests.conformance.callers import Request
from tests.faults.streams import channel
from tests.harness.processes import Daemon, ReplayEngine, Stack

SWEEP_S = 0.05
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


def stamps_of(call: Any) -> Iterator[tuple[int, int]]:
    """Yield, for each token, when it was committed and when it came, in monotonic ns."""
    for frame in call:
        now_ns = time.monotonic_ns()
        for stamp in frame.data.decode().split("x")[:-1]:
            yield int(stamp), now_ns


@pytest.mark.parametrize("door", ["grpcio", "batched"])
def test_without_any_bell_no_token_is_lost_and_none_waits_longer_than_the_sweeps(
    deaf: Stack, door: str
) -> None:
    daemon = deaf.daemon
    target = daemon.grpc_address if door == "grpcio" else f"unix:{daemon.envoy_socket}"
    with channel(target) as opened:
        stub = rrpa_pb2_grpc.RRPAServiceStub(opened)
        request = Request(model="test", prompt="echo:" + "x" * TOKENS)
        calls = [stub.CreateStream(request, timeout=30) for _ in range(STREAMS)]
        first: grpc.Call = calls[0]
        delays_s = [(came - made) / 1e9 for made, came in stamps_of(first)]
        others = [b"".join(frame.data for frame in call) for call in calls[1:]]
    print(f"median {statistics.median(delays_s):.3f} s, most {max(delays_s):.3f} s")
    assert len(delays_s) == TOKENS
    assert [each.count(b"x") for each in others] == [TOKENS] * (STREAMS - 1)
    assert statistics.median(delays_s) > 0.002, "a bell was heard"
    assert max(delays_s) < LONGEST_FACTOR * SWEEP_S + LATE_S
