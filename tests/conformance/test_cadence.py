"""Tokens arrive as they are produced, for as long as they take (E3, G35, G42, G43)."""

from __future__ import annotations

import itertools
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator

import grpc

from rrpa_sidecar.pb import rrpa_pb2_grpc
from tests.conformance.asking import replay
from tests.conformance.callers import Caller, GrpcCaller, HttpCaller, Request

TOKENS = 60
PACE_S = 0.05
GAP_TOLERANCE_S = 0.005
SILENT_S = 26


def arrivals(caller: Caller, request: Request) -> Iterator[float]:
    """Yield the moment at which each token reached the caller."""
    if isinstance(caller, GrpcCaller):
        for frame in caller.stub.CreateStream(request, timeout=60):
            if frame.data:
                yield time.monotonic()
        return
    assert isinstance(caller, HttpCaller)
    with subprocess.Popen(caller.argv(request), stdout=subprocess.PIPE, bufsize=0) as curl:
        assert curl.stdout is not None
        while curl.stdout.read(65536):
            yield time.monotonic()


def test_gaps_at_the_caller_are_the_engines_gaps(caller: Caller) -> None:
    request = replay([b"token "] * TOKENS, between_s=PACE_S)
    at = list(arrivals(caller, request))
    assert len(at) == TOKENS, "no two tokens came as one"
    off = sorted(abs(b - a - PACE_S) for a, b in itertools.pairwise(at))
    print("ms off the engine's pace:", [round(each * 1000, 2) for each in off])
    assert statistics.median(off) < GAP_TOLERANCE_S
    # A busy machine delays a token now and then; a buffer would delay nearly all.
    assert off[int(len(off) * 0.8)] < 2 * GAP_TOLERANCE_S
    assert abs((at[-1] - at[0]) - PACE_S * (TOKENS - 1)) < 0.25


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
