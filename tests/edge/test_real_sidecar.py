"""The edge in front of the real sidecar: what only both together can show."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import grpc
import pytest

from rrpa_sidecar.edge.routes import PLAIN_HTTP
from rrpa_sidecar.frontend import metadata
from rrpa_sidecar.pb.rrpa_pb2 import CreateStreamRequest
from rrpa_sidecar.pb.rrpa_pb2_grpc import RRPAServiceStub
from tests.edge.support import CURL_FAILED_STREAM
from tests.harness.processes import Stack

TOKENS = 5


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack({"max_request_bytes": 1 << 20, "queue_limit": 0}, envoy=True) as running:
        yield running


def post(stack: Stack, request: dict[str, object]) -> subprocess.CompletedProcess[bytes]:
    path = stack.envoy.folder / "body.json"
    path.write_text(json.dumps(request))
    argv = ["curl", "-sSN", "-m", "20", "--cacert", stack.envoy.ca, "--data-binary", f"@{path}"]
    argv += ["-w", "\n%{http_code}", stack.envoy.url("/v2/messages")]
    return subprocess.run(argv, capture_output=True, check=False)


def failing(between_s: float) -> str:
    script = {"tokens": [b"abc ".hex()] * TOKENS, "delay_s": between_s, "code": 13, "text": "broke"}
    return "replay:" + json.dumps(script)


@pytest.mark.parametrize("between_s", [0, 0.001])
def test_bytes_before_a_failure_all_arrive_and_then_the_stream_is_broken(
    stack: Stack, between_s: float
) -> None:
    for _ in range(10):
        done = post(stack, {"model": "test", "prompt": failing(between_s)})
        assert done.stdout == b"abc " * TOKENS + b"\n200"
        assert done.returncode == CURL_FAILED_STREAM


def test_grpc_caller_of_the_same_method_gets_the_status(stack: Stack) -> None:
    secret = grpc.ssl_channel_credentials(stack.envoy.written.certificate.read_bytes())
    with grpc.secure_channel(stack.envoy.address, secret) as channel:
        request = CreateStreamRequest(model="test", prompt=failing(0))
        call = RRPAServiceStub(channel).CreateMessage(request, timeout=20)
        got = b""
        with pytest.raises(grpc.RpcError):
            for body in call:
                got += body.data
        assert got == b"abc " * TOKENS
        assert (call.code(), call.details()) == (grpc.StatusCode.INTERNAL, "broke")


def test_request_beyond_the_limit_is_refused_with_the_limit(stack: Stack) -> None:
    def status(size: int) -> tuple[int, bytes]:
        done = post(stack, {"model": "test", "prompt": "echo:" + "a" * size, "max_tokens": 0})
        assert done.returncode == 0, done.stderr
        body, _, code = done.stdout.rpartition(b"\n")
        return int(code), body

    assert status((1 << 20) - 100) == (200, b"")
    code, sentence = status(1 << 20)
    assert code == 429
    assert str(1 << 20).encode() in sentence


def test_both_sides_use_the_same_name_for_plain_http() -> None:
    assert metadata.PLAIN_HTTP == PLAIN_HTTP
