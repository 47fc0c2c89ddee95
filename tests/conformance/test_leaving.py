"""A caller that goes away stops the engine's work (R3, field-bugs.md G14).

Evidence is the engine's: its slot is free once its log has ended and the lease is dropped, and
then the file goes. 100 ms as a rule of several rounds.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from rrpa_sidecar.pb import rrpa_pb2, rrpa_pb2_grpc
from tests.conformance.asking import replay
from tests.conformance.callers import Caller, GrpcCaller, HttpCaller, Request
from tests.harness.processes import Stack, eventually

STOPPED_WITHIN_S = 0.1
ROUNDS = 5

BEFORE_FIRST = replay([b"token "], delay_s=60)
MID_STREAM = replay([b"token "], repeat=5000, between_s=0.01)


class Client:
    """One call that is open, and one way to leave it.

    holds: what must live until then; gRPC cancels a call that nobody holds.
    """

    def __init__(
        self,
        leave: Callable[[], Any],
        clean: Callable[[], Any] = lambda: None,
        holds: Any = None,
    ):
        self.leave = leave
        self.clean = clean
        self.holds = holds


def cancelling(caller: GrpcCaller, request: Request, first_token: bool) -> Client:
    call = caller.stub.CreateStream(request, timeout=60)
    call.initial_metadata()
    if first_token:
        next(call)
    return Client(call.cancel)


def closing(caller: GrpcCaller, request: Request, first_token: bool) -> Client:
    channel = caller.connect()
    call = rrpa_pb2_grpc.RRPAServiceStub(channel).CreateStream(request, timeout=60)
    call.initial_metadata()
    if first_token:
        next(call)
    return Client(channel.close, holds=call)


def killed(caller: Caller, request: Request, first_token: bool) -> Client:
    if isinstance(caller, HttpCaller):
        argv = caller.argv(request)
    else:
        assert isinstance(caller, GrpcCaller)
        script = ["-m", "tests.conformance.one_client"]
        argv = [sys.executable, *script, caller.target, caller.ca or "-"]
        argv.append(request.SerializeToString().hex())
    child = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert child.stdout is not None
    if isinstance(caller, GrpcCaller):
        assert child.stdout.readline() == b"accepted\n"
    if first_token:
        assert child.stdout.read(6)

    def clean() -> None:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()

    return Client(child.kill, clean)


@pytest.fixture
def control(stack: Stack) -> Iterator[rrpa_pb2_grpc.RRPAServiceStub]:
    """ListModels: a model's `active` falls when the engine has ended its log, not before."""
    with grpc.insecure_channel(stack.daemon.grpc_address) as channel:
        yield rrpa_pb2_grpc.RRPAServiceStub(channel)


def active(control: rrpa_pb2_grpc.RRPAServiceStub) -> int:
    models = control.ListModels(rrpa_pb2.ListModelsRequest(), timeout=5).models
    return sum(model.active for model in models)


def check_leaving(
    stack: Stack, control: rrpa_pb2_grpc.RRPAServiceStub, open_client: Callable[[], Client]
) -> None:
    """Leave ROUNDS times; the engine has stopped within 100 ms, as a rule of this machine."""
    took = []
    for _ in range(ROUNDS):
        eventually(lambda: active(control) == 0, what="the slots are free")
        client = open_client()
        try:
            eventually(lambda: active(control) == 1, what="the engine works")
            began = time.monotonic()
            client.leave()
            eventually(lambda: active(control) == 0, 2, "the engine stopped and its slot is free")
            took.append(time.monotonic() - began)
            eventually(lambda: not stack.daemon.segments(), 2, "the file is gone")
        finally:
            client.clean()
    print("seconds until the engine had stopped:", [round(each, 3) for each in took])
    # The machine may be busy with other work; the product may not need more as a rule.
    assert statistics.median(took) < STOPPED_WITHIN_S, took


@pytest.mark.parametrize("first_token", [False, True], ids=["before-first-token", "mid-stream"])
@pytest.mark.parametrize("way", [cancelling, closing], ids=["cancels", "closes-its-channel"])
def test_engine_stops_when_a_caller(
    stack: Stack,
    control: rrpa_pb2_grpc.RRPAServiceStub,
    grpc_caller: GrpcCaller,
    way: Callable[[GrpcCaller, Request, bool], Client],
    first_token: bool,
) -> None:
    request = MID_STREAM if first_token else BEFORE_FIRST
    check_leaving(stack, control, lambda: way(grpc_caller, request, first_token))


@pytest.mark.parametrize("first_token", [False, True], ids=["before-first-token", "mid-stream"])
def test_engine_stops_when_a_caller_is_killed(
    stack: Stack,
    control: rrpa_pb2_grpc.RRPAServiceStub,
    caller: Caller,
    first_token: bool,
) -> None:
    request = MID_STREAM if first_token else BEFORE_FIRST
    check_leaving(stack, control, lambda: killed(caller, request, first_token))


def test_engine_stops_when_the_callers_deadline_passes(
    stack: Stack, control: rrpa_pb2_grpc.RRPAServiceStub, grpc_caller: GrpcCaller
) -> None:
    call = grpc_caller.stub.CreateStream(MID_STREAM, timeout=0.4)
    with pytest.raises(grpc.RpcError) as failed:
        list(call)
    assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    eventually(lambda: active(control) == 0, 2, "the engine stopped")


def test_next_stream_after_many_cancels_is_clean(
    stack: Stack, control: rrpa_pb2_grpc.RRPAServiceStub, grpc_caller: GrpcCaller
) -> None:
    for turn in range(40):
        call = grpc_caller.stub.CreateStream(replay([b"gone"] * 3, between_s=0.002 * (turn % 3)))
        if turn % 2:
            next(call)
        call.cancel()
        answer = grpc_caller.ask(replay([b"mine ", str(turn).encode()]))
        assert (answer.code, answer.data) == ("OK", f"mine {turn}".encode())
    eventually(lambda: active(control) == 0, what="every slot is free")
