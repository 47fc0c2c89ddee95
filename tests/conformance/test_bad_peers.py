"""Peers that do not speak the protocol harm only themselves (field-bugs.md G13, G35, G46)."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from rrpa_sidecar.pb import engine_pb2, engine_pb2_grpc, rrpa_pb2_grpc
from tests.conformance.asking import replay
from tests.conformance.callers import GrpcCaller
from tests.harness.processes import Stack, eventually

MIB = 1024 * 1024
GARBAGE = {
    "http/1.1": b"POST /v2/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
    "noise": bytes(range(256)) * 300,
    "a-long-line": b"x" * (10 * MIB),
    "half-a-preface": b"PRI * HTTP/2.0\r\n\r\nSM",
    "preface-then-noise": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 1000,
    "nothing": b"",
}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A stack of its own, whose engines have half a second to say Hello."""
    with Stack({"hello_timeout_s": 0.5}, engine={"capacity": 8}) as running:
        yield running


@pytest.fixture
def running_stream(stack: Stack) -> Iterator[None]:
    """A stream that runs through the test and must arrive whole."""
    caller = GrpcCaller("grpcio, TCP", stack.daemon.grpc_address)
    call = caller.stub.CreateStream(replay([b"before ", b"after"], delays_s=[0, 1.0]), timeout=20)
    assert next(call).data == b"before "
    yield
    assert b"".join(frame.data for frame in call) == b"after"
    caller.close()


def connect(stack: Stack, where: str) -> socket.socket:
    if where == "grpc":
        host, _, port = stack.daemon.grpc_address.rpartition(":")
        return socket.create_connection((host, int(port)), 5)
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(5)
    peer.connect(stack.daemon.engine_socket if where == "engines" else stack.daemon.envoy_socket)
    return peer


@pytest.mark.parametrize("where", ["grpc", "envoy", "engines"])
@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_ends_only_its_own_connection(
    stack: Stack, running_stream: None, where: str, what: str
) -> None:
    with connect(stack, where) as peer:
        with contextlib.suppress(OSError):
            peer.sendall(GARBAGE[what])
        if what == "half-a-preface":
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_WR)
    assert "Traceback" not in stack.daemon.stderr
    assert stack.daemon.alive


def test_tls_hello_at_the_plain_port_is_refused(stack: Stack, running_stream: None) -> None:
    context = ssl._create_unverified_context()
    with connect(stack, "grpc") as peer, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(peer, server_hostname="localhost")
    assert "Traceback" not in stack.daemon.stderr


def attach(stack: Stack, messages: Any) -> grpc.RpcError:
    """Make an Attach call that has to fail, and return how."""
    with grpc.insecure_channel(f"unix:{stack.daemon.engine_socket}") as channel:
        call = engine_pb2_grpc.EngineServiceStub(channel).Attach(messages, timeout=10)
        with pytest.raises(grpc.RpcError) as failed:
            list(call)
        return failed.value


def test_engine_that_says_nothing_is_let_go(stack: Stack, running_stream: None) -> None:
    import threading

    release = threading.Event()

    def silence() -> Iterator[engine_pb2.AttachRequest]:
        release.wait(10)
        yield from ()

    failed = attach(stack, silence())
    release.set()
    assert failed.code() not in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
    assert failed.code() is not grpc.StatusCode.DEADLINE_EXCEEDED or "Hello" in failed.details()


@pytest.mark.parametrize(
    "hello",
    [
        {},
        {"engine_name": "../x"},
        {"engine_name": "n" * 65},
        {"engine_name": "a\nb"},
        {"models": []},
        {"models": ["\u00e4"]},
        {"capacity": 0},
        {"capacity": 65537},
        {"table_id": "../../../etc/passwd"},
        {"build": "x" * (10 * MIB)},
        {"format_version": 99},
        {"table_nonce": b"short"},
    ],
    ids=lambda hello: ",".join(hello) or "empty",
)
def test_wrong_hello_is_refused_in_a_sentence(
    stack: Stack, running_stream: None, hello: dict[str, Any]
) -> None:
    good = {
        "engine_name": "wrong",
        "models": ["m"],
        "capacity": 1,
        "format_version": 1,
        "table_id": "0" * 32,
        "table_nonce": b"0" * 16,
    }
    said = engine_pb2.Hello(**({**good, **hello} if hello else {}))
    failed = attach(stack, iter([engine_pb2.AttachRequest(hello=said)]))
    assert failed.code() in (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    ), failed
    assert 0 < len(failed.details().encode()) < 200
    assert stack.daemon.metric("rrpa_engines_attached") == 1


def test_client_that_pings_without_pause_is_cut_alone(stack: Stack, running_stream: None) -> None:
    hostile = {
        "grpc.keepalive_time_ms": 100,
        "grpc.keepalive_timeout_ms": 5000,
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.max_pings_without_data": 0,
        "grpc.http2.min_time_between_pings_ms": 100,
    }
    caller = GrpcCaller("grpcio, TCP", stack.daemon.grpc_address)
    with caller.connect(**hostile) as channel:
        stub = rrpa_pb2_grpc.RRPAServiceStub(channel)
        with pytest.raises(grpc.RpcError) as failed:
            list(stub.CreateStream(replay([b"x"], delay_s=8), timeout=8))
        print(failed.value.code(), failed.value.details())
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    caller.close()
    eventually(lambda: stack.daemon.metric("rrpa_active_streams") <= 1, what="its stream is over")
