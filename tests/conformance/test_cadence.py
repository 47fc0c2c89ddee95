"""Tokens arrive as they are produced, for as long as they take (E3, G35, G42, G43).

The engine writes into each token when it committed it, so gaps are compared with the gaps that
the engine really made, and not with those that it was asked for.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from rrpa_sidecar.pb import rrpa_pb2_grpc
from tests.conformance.asking import replay
from tests.conformance.callers import Caller, GrpcCaller, HttpCaller, Request
from tests.conformance.conftest import once_with_both
from tests.harness.processes import ReplayEngine, Stack

TOKENS = 60
PACE_S = 0.05
LIMIT_MS = 5.0
QUIET = 10
"""Gaps of half a second."""
TRIES = 8
SILENT_S = 26
STAMPED = Request(model="stamped", prompt="echo:" + "x" * TOKENS)


@pytest.fixture(scope="module")
def stamping(stack: Stack) -> Iterator[None]:
    """An engine beside the others that stamps its tokens: `<19 digits> x`, one each PACE_S."""
    pace = {"tokens_per_second": 1 / PACE_S, "bytes_per_token": 1}
    with ReplayEngine(stack.daemon, model="stamped", stamp=True, **pace):
        yield


def pieces(caller: Caller) -> Iterator[bytes]:
    """Yield the bytes of the answer as they reach the caller."""
    if isinstance(caller, GrpcCaller):
        for frame in caller.stub.CreateStream(STAMPED, timeout=60):
            yield frame.data
        return
    assert isinstance(caller, HttpCaller)
    with subprocess.Popen(caller.argv(STAMPED), stdout=subprocess.PIPE, bufsize=0) as curl:
        assert curl.stdout is not None
        while part := os.read(curl.stdout.fileno(), 65536):
            yield part


def delays_ms(caller: Caller) -> list[float]:
    """Return, for each token, the time from its commit by the engine to its arrival here."""
    found: list[float] = []
    for piece in pieces(caller):
        now_ns = time.monotonic_ns()
        found += [(now_ns - int(stamp)) / 1e6 for stamp in piece.decode().split("x")[:-1]]
    assert len(found) == TOKENS
    return found


def test_gaps_at_the_caller_equal_the_engines_gaps_within_5_ms(
    stamping: None, caller: Caller
) -> None:
    """A gap here is off by the difference of two delays.

    Half of all gaps, and every one of a quiet half second: other work on the machine delays a
    token now and then; a buffer or a batch delays every second one or more, all the time.
    """
    for _ in range(TRIES):
        delays = delays_ms(caller)
        off = [abs(b - a) for a, b in itertools.pairwise(delays)]
        best = min(max(off[at : at + QUIET]) for at in range(len(off) - QUIET))
        usual = statistics.median(off)
        print(
            f"ms off the engine's gaps: median {usual:.2f}, most {max(off):.2f}, most in the best"
            f" half second {best:.2f}; median delay {statistics.median(delays):.2f}"
        )
        if max(best, usual, statistics.median(delays)) < LIMIT_MS:
            return
    pytest.fail(f"no quiet half second in {TRIES} tries; in the last one {best:.2f} ms at best")


@once_with_both
def test_a_stream_that_is_silent_for_long_is_cut_by_nobody(
    stack: object, all_callers: list[Caller]
) -> None:
    """Past the 15 s at which Envoy cuts routes by default; over gRPC with pings.

    Callers may rely on 10 s between pings. With 6 s, a server that has gRPC's default limit
    counts three strikes in this time and ends the connection, so the test sees it.
    """
    request = replay([b"at ", b"last"], delay_s=SILENT_S)
    pings = {"grpc.keepalive_time_ms": 6_000, "grpc.keepalive_permit_without_calls": 1}
    got: dict[str, bytes] = {}

    def ask(caller: Caller) -> None:
        if isinstance(caller, GrpcCaller):
            with caller.connect(**pings, **{"grpc.http2.max_pings_without_data": 0}) as channel:
                stub = rrpa_pb2_grpc.RRPAServiceStub(channel)
                try:
                    frames = stub.CreateStream(request, timeout=60)
                    got[caller.name] = b"".join(frame.data for frame in frames)
                except grpc.RpcError as error:
                    got[caller.name] = repr(error).encode()
        else:
            got[caller.name] = caller.ask(request).data

    threads = [threading.Thread(target=ask, args=(caller,)) for caller in all_callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {caller.name: b"at last" for caller in all_callers}
