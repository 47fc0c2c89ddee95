"""gRPC through the edge: nothing is added, nothing is changed."""

from __future__ import annotations

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rrpa_sidecar.edge.descriptors import SERVICE
from rrpa_sidecar.pb.rrpa_pb2_grpc import RRPAServiceStub
from tests.edge.fake_sidecar import SENTENCE
from tests.edge.support import Edge, message


def test_tokens_arrive_as_they_were_sent(stub: RRPAServiceStub) -> None:
    frames = list(stub.CreateStream(message("x", max_tokens=3)))
    assert [frame.data for frame in frames] == [b"token0 ", b"token1 ", b"token2 "]


@pytest.mark.parametrize("model", ["refused", "accepted-then-failed"])
@pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "DATA_LOSS"])
@pytest.mark.parametrize("method", ["CreateStream", "CreateMessage"])
def test_status_and_sentence_pass_untouched(
    stub: RRPAServiceStub, method: str, model: str, code: str
) -> None:
    call = getattr(stub, method)(message(model, prompt=code))
    with pytest.raises(grpc.RpcError):
        list(call)
    assert (call.code(), call.details()) == (grpc.StatusCode[code], SENTENCE)


@pytest.mark.parametrize("method", ["CreateStream", "CreateMessage"])
def test_stream_that_fails_half_way_ends_with_its_status(
    stub: RRPAServiceStub, method: str
) -> None:
    # Also for a caller who claims to be plain HTTP: the edge alone says that.
    call = getattr(stub, method)(
        message("fails", max_tokens=3), metadata=[("rrpa-plain-http", "1")]
    )
    got = []
    with pytest.raises(grpc.RpcError):
        for frame in call:
            got.append(frame.data)
    assert got == [b"token0 ", b"token1 ", b"token2 "]
    assert (call.code(), call.details()) == (grpc.StatusCode.UNAVAILABLE, SENTENCE)


def test_health_is_asked_for_by_the_name_that_envoy_asks_for(edge: Edge) -> None:
    with edge.channel() as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_unknown_method_is_unimplemented(edge: Edge) -> None:
    with edge.channel() as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/some.Other/Method")(b"", timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "rrpa.v1.RRPAService" in caught.value.details()


def test_deadline_of_the_caller_reaches_the_sidecar(stub: RRPAServiceStub) -> None:
    call = stub.CreateStream(message("held", prompt="30"), timeout=0.5)
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
