"""The tools that operators have: grpcurl without a proto file, and plain curl (P2, E5, E6)."""

from __future__ import annotations

import base64
import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.conformance.asking import replay
from tests.conformance.callers import HttpCaller
from tests.harness.processes import Stack

GRPCURL = str(pathlib.Path(sys.executable).parent / "grpcurl")
SERVICE = "rrpa.v1.RRPAService"


def grpcurl(*arguments: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    done = subprocess.run(
        [GRPCURL, *arguments], capture_output=True, text=True, check=False, env=clean, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(params=["plain", "envoy"])
def target(request: pytest.FixtureRequest, stack: Stack) -> list[str]:
    if request.param == "plain":
        return ["-plaintext", stack.daemon.grpc_address]
    return ["-cacert", stack.envoy.ca, stack.envoy.address]


def test_grpcurl_calls_create_stream_without_a_proto_file(target: list[str]) -> None:
    flags, address = target[:-1], target[-1]
    body = json.dumps({"model": "test", "max_tokens": 8})
    printed = grpcurl(*flags, "-d", body, address, f"{SERVICE}/CreateStream")
    frames = [json.loads(part) for part in split_objects(printed)]
    assert frames[-1]["finish"]["reason"] == "FINISH_REASON_LENGTH"
    assert frames[-1]["finish"]["usage"]["completion_tokens"] == 8
    data = b"".join(base64.b64decode(frame.get("data", "")) for frame in frames)
    assert data
    assert data.decode()


def test_grpcurl_with_only_a_model_gets_an_answer(stack: Stack) -> None:
    address = stack.daemon.grpc_address
    printed = grpcurl("-plaintext", "-d", '{"model": "test"}', address, f"{SERVICE}/CreateStream")
    assert "finish" in printed


def test_grpcurl_lists_and_describes_all_that_is_served(stack: Stack) -> None:
    address = stack.daemon.grpc_address
    listed = grpcurl("-plaintext", address, "list").split()
    assert set(listed) >= {SERVICE, "grpc.health.v1.Health"}
    assert "rrpa.v1.EngineService" not in listed, "engines have a socket of their own"
    assert "max_tokens" in grpcurl("-plaintext", address, "describe", "rrpa.v1.CreateStreamRequest")


def test_grpcurl_lists_models(stack: Stack) -> None:
    printed = grpcurl("-plaintext", stack.daemon.grpc_address, f"{SERVICE}/ListModels")
    assert "test" in [model["name"] for model in json.loads(printed)["models"]]


def test_grpcurl_asks_for_health(target: list[str]) -> None:
    flags, address = target[:-1], target[-1]
    for service in ("", SERVICE):
        body = json.dumps({"service": service})
        if "-cacert" in flags:
            continue  # Envoy asks for health; it does not pass such questions on
        printed = grpcurl(*flags, "-d", body, address, "grpc.health.v1.Health/Check")
        assert json.loads(printed) == {"status": "SERVING"}


def curl(stack: Stack, path: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    argv = ["curl", "-sS", "--http2", "--cacert", stack.envoy.ca, "--max-time", "30"]
    return subprocess.run(
        [*argv, *arguments, stack.envoy.url(path)], capture_output=True, check=False
    )


def test_curl_prints_the_raw_answer_and_its_type(stack: Stack) -> None:
    body = json.dumps({"model": "test", "max_tokens": 4})
    done = curl(stack, "/v2/messages", "-i", "-H", "content-type: application/json", "-d", body)
    head, _, data = done.stdout.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/2 200")
    assert b"content-type: text/plain; charset=utf-8" in head.lower()
    assert data
    assert data.decode()


def test_old_path_answers_410_with_the_agreed_sentence(stack: Stack) -> None:
    done = curl(stack, "/v1/messages", "-i", "-d", "{}")
    head, _, data = done.stdout.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/2 410")
    assert data == b"RRPA deprecated. Use /v2/messages with raw token streaming."


def test_http_error_body_is_the_sidecars_sentence_as_plain_text(stack: Stack) -> None:
    caller = HttpCaller("HTTP", stack.envoy.url("/v2/messages"), stack.envoy.ca)
    request = replay([b"x"])
    request.model = "not-there"
    answer = caller.ask(request)
    assert answer.code == "404"
    assert answer.headers["content-type"] == ["text/plain; charset=utf-8"]
    assert "not-there" in answer.text


def test_a_stream_that_fails_half_way_looks_broken_to_curl(stack: Stack) -> None:
    caller = HttpCaller("HTTP", stack.envoy.url("/v2/messages"), stack.envoy.ca)
    request = replay([b"half ", b"an answer"], between_s=0.1, code=13, text="it broke")
    done = subprocess.run(caller.argv(request), capture_output=True, check=False)
    assert done.stdout.startswith(b"half ")
    assert done.returncode != 0, "curl cannot tell this from a complete answer"


def split_objects(text: str) -> list[str]:
    """Split JSON objects that are printed one after the other."""
    found, decoder, at = [], json.JSONDecoder(), 0
    while (at := len(text) - len(text[at:].lstrip())) < len(text):
        _, end = decoder.raw_decode(text, at)
        found.append(text[at:end])
        at = end
    return found
