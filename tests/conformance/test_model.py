"""The same promises with a real model: llama.cpp on the CPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import grpc
import pytest

from rrpa_sidecar.pb import rrpa_pb2, rrpa_pb2_grpc
from tests.conformance.callers import ROWS, Caller, GrpcCaller, Request
from tests.conformance.test_leaving import STOPPED_WITHIN_S
from tests.harness.processes import LlamaEngine, Stack, eventually

MODEL = "tiny"
COUNTING = "One, two, three, four, five, six,"


@pytest.fixture(scope="module")
def model_stack() -> Iterator[Stack]:
    """Sidecar, llama.cpp and Envoy."""
    with (
        Stack(engine=None, envoy={"wait_healthy": False}) as running,
        LlamaEngine(running.daemon, model=MODEL, capacity=4, context=2048),
    ):
        eventually(running.envoy.is_healthy, 20, "Envoy finds the sidecar healthy")
        yield running


@pytest.fixture(scope="module", params=list(ROWS))
def asking(request: pytest.FixtureRequest, model_stack: Stack) -> Iterator[Caller]:
    made = ROWS[request.param](model_stack)
    yield made
    made.close()


def test_greedy_answer_is_the_same_on_every_way_in_and_beside_others(asking: Caller) -> None:
    request = Request(model=MODEL, prompt=COUNTING, max_tokens=8, temperature=0.0)
    answers = asking.ask_all([request] * 3)
    for answer in answers:
        assert answer.complete, (answer.code, answer.text)
        assert answer.data.decode().startswith(" seven, eight")


def tcp(model_stack: Stack) -> GrpcCaller:
    made = ROWS["grpcio-tcp"](model_stack)
    assert isinstance(made, GrpcCaller)
    return made


def test_usage_finish_and_frames_of_a_real_answer(model_stack: Stack) -> None:
    caller = tcp(model_stack)
    said = rrpa_pb2.Message(role="user", content="😀😃😄😁 한글 é")
    answer = caller.ask(Request(model=MODEL, messages=[said], max_tokens=12, temperature=0.0))
    caller.close()
    assert answer.finish is not None
    assert answer.finish.usage.prompt_tokens > 5
    assert 0 < answer.finish.usage.completion_tokens <= 12
    for frame in answer.frames[:-1]:
        frame.data.decode("utf-8")


@pytest.mark.alone
@pytest.mark.parametrize("first_token", [False, True], ids=["before-first-token", "mid-stream"])
def test_cancelled_model_stops_within_100_ms_and_frees_its_slot(
    model_stack: Stack, first_token: bool
) -> None:
    caller = tcp(model_stack)
    long = Request(model=MODEL, prompt=COUNTING * 100, max_tokens=2000, ignore_eos=True)
    if first_token:
        long.prompt = COUNTING
    with grpc.insecure_channel(model_stack.daemon.grpc_address) as channel:
        control = rrpa_pb2_grpc.RRPAServiceStub(channel)

        def active() -> int:
            listed = control.ListModels(rrpa_pb2.ListModelsRequest(), timeout=5)
            return sum(model.active for model in listed.models)

        took = []
        for _ in range(5):
            call = caller.stub.CreateStream(long, timeout=60)
            call.initial_metadata()
            if first_token:
                next(call)
            eventually(lambda: active() == 1, what="the model works")
            began = time.monotonic()
            call.cancel()
            eventually(lambda: active() == 0, 2, "the model stopped")
            took.append(time.monotonic() - began)
            eventually(lambda: not model_stack.daemon.segments(), 2, "the file is gone")
    caller.close()
    print("seconds until the model had stopped:", [round(each, 3) for each in took])
    assert statistics.median(took) < STOPPED_WITHIN_S, took
