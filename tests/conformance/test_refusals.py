"""What is refused, with which code and sentence (P4, P8, field-bugs.md G3, G8–G12)."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator

import grpc
import pytest

from rrpa_sidecar.pb import rrpa_pb2, rrpa_pb2_grpc
from tests.conformance.asking import replay
from tests.conformance.callers import Answer, Caller, GrpcCaller, Request, collect
from tests.harness.processes import Process, Stack, eventually

MIB = 1024 * 1024
LIMIT = 8 * MIB
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
HTTP_STATUS = {
    "INVALID_ARGUMENT": "400",
    "NOT_FOUND": "404",
    "RESOURCE_EXHAUSTED": "429",
    "INTERNAL": "500",
    "UNAVAILABLE": "503",
}


@pytest.fixture(scope="module")
def echo(stack: Stack) -> Iterator[Process]:
    """The ten-line engine, attached beside the replay engine."""
    argv = [sys.executable, "-m", "tests.conformance.echo_engine"]
    argv += [stack.daemon.engine_socket, str(stack.daemon.shm_dir)]
    with Process(argv, ready="echo engine ready") as running:
        yield running


def refused(answer: Answer, code: str, *words: str) -> None:
    assert answer.code in (code, HTTP_STATUS[code]), (answer.code, answer.text)
    assert not answer.complete
    assert answer.data == b""
    assert not answer.frames
    assert 0 < len(answer.text.encode()) < 200, answer.text
    assert "\n" not in answer.text.rstrip("\n")
    for word in words:
        assert word in answer.text, answer.text


def test_unknown_model_is_not_found_and_named(caller: Caller) -> None:
    refused(caller.ask(Request(model="nobody-serves-me")), "NOT_FOUND", "nobody-serves-me")


def test_long_model_name_is_shortened_in_the_refusal(caller: Caller) -> None:
    answer = caller.ask(Request(model="m" * 5000))
    assert answer.code in ("NOT_FOUND", "INVALID_ARGUMENT", "400", "404")
    refused(answer, "NOT_FOUND" if answer.code in ("NOT_FOUND", "404") else "INVALID_ARGUMENT")


def test_missing_model_is_invalid(caller: Caller) -> None:
    refused(caller.ask(Request(prompt="hi")), "INVALID_ARGUMENT", "model")


@pytest.mark.parametrize("value", [-1, INT32_MIN])
def test_negative_max_tokens_is_invalid(caller: Caller, value: int) -> None:
    refused(caller.ask(Request(model="test", max_tokens=value)), "INVALID_ARGUMENT", "max_tokens")


def test_max_tokens_0_finishes_with_length_and_no_token(grpc_caller: GrpcCaller) -> None:
    answer = grpc_caller.ask(Request(model="test", max_tokens=0))
    assert (answer.code, answer.data, len(answer.frames)) == ("OK", b"", 1)
    assert answer.finish is not None
    assert answer.finish.reason == 2, "LENGTH"


@pytest.mark.parametrize(("value", "tokens"), [(1, 1), (2, 2)])
def test_max_tokens_counts_tokens(grpc_caller: GrpcCaller, value: int, tokens: int) -> None:
    answer = grpc_caller.ask(Request(model="test", max_tokens=value))
    assert answer.finish is not None
    assert answer.finish.usage.completion_tokens == tokens
    assert answer.finish.reason == 2, "LENGTH"


def test_absent_and_largest_max_tokens_are_not_mistaken_for_0(grpc_caller: GrpcCaller) -> None:
    for request in (replay([b"a", b"b"]), replay([b"a", b"b"])):
        answer = grpc_caller.ask(request)
        assert answer.data == b"ab"
        request.max_tokens = INT32_MAX
        assert grpc_caller.ask(request).data == b"ab"


def test_request_reaches_the_engine_byte_for_byte(echo: Process, grpc_caller: GrpcCaller) -> None:
    requests = [
        Request(model="echo"),
        Request(model="echo", max_tokens=0, temperature=0.0, top_k=0, seed=0),
        Request(model="echo", max_tokens=1, temperature=0.7, stop_sequences=["\0", "é"]),
        Request(model="echo", prompt="A\0B\u2028\ufeff"),
    ]
    raw = [request.SerializeToString() for request in requests]
    # Fields that this sidecar does not know, and an order that no serializer of ours makes.
    raw.append(b"\xa2\x1f\x05later" + Request(model="echo").SerializeToString())
    raw.append(b"\x21" + b"\0" * 8 + Request(model="echo", max_tokens=3).SerializeToString())
    asked = grpc_caller.channel.unary_stream(
        "/rrpa.v1.RRPAService/CreateStream",
        request_serializer=bytes,
        response_deserializer=rrpa_pb2.CreateStreamResponse.FromString,
    )
    for each in raw:
        answer = collect(asked(each, timeout=20))
        assert answer.code == "OK", answer.text
        assert bytes.fromhex(answer.data.decode()) == each


def test_request_that_is_no_protobuf_is_invalid(grpc_caller: GrpcCaller) -> None:
    asked = grpc_caller.channel.unary_stream(
        "/rrpa.v1.RRPAService/CreateStream",
        request_serializer=bytes,
        response_deserializer=rrpa_pb2.CreateStreamResponse.FromString,
    )
    refused(collect(asked(b"\x0a\xff", timeout=20)), "INVALID_ARGUMENT")


@pytest.mark.parametrize("size", [4 * MIB - 1, 4 * MIB, 4 * MIB + 1, LIMIT - 1024])
def test_prompt_below_the_one_limit_is_served(echo: Process, caller: Caller, size: int) -> None:
    answer = caller.ask(Request(model="length", prompt="x" * size))
    assert (answer.code, answer.data) == ("OK", str(size).encode()), answer.text


@pytest.mark.parametrize("size", [LIMIT + 1, 20 * MIB])
def test_prompt_over_the_limit_is_refused_and_harms_no_other_stream(
    echo: Process, stack: Stack, grpc_caller: GrpcCaller, size: int
) -> None:
    other = grpc_caller.stub.CreateStream(replay([b"still ", b"here"], between_s=1.0), timeout=20)
    assert next(other).data == b"still "
    before = stack.daemon.rss_bytes()
    answer = grpc_caller.ask(Request(model="length", prompt="x" * size))
    refused(answer, "RESOURCE_EXHAUSTED", str(LIMIT))
    assert b"".join(frame.data for frame in other) == b"here"
    eventually(
        lambda: stack.daemon.rss_bytes() < before + 3 * LIMIT, what="memory returns to its base"
    )


@pytest.mark.parametrize(
    "text",
    ["Traceback: 😀\n\0" * 3000, "ü" * 20000, "short and plain"],
    ids=["traceback", "umlauts", "short"],
)
def test_engines_long_error_keeps_its_code_and_becomes_one_short_line(
    echo: Process, caller: Caller, text: str
) -> None:
    answer = caller.ask(Request(model="fail", prompt=text))
    refused(answer, "INTERNAL", text[:8])


NAMES = ["../x", "/etc/x", "a/b", ".", "..", "n" * 256, "rrpa_table_0", "%2e%2e%2f", "a,b", "a b"]


@pytest.mark.parametrize("name", NAMES)
def test_ids_of_callers_are_labels_and_never_paths(stack: Stack, caller: Caller, name: str) -> None:
    before = everything_in(stack.daemon.folder) | everything_in(stack.daemon.shm_dir)
    answer = caller.ask(replay([b"ok"]), [("x-request-id", name), ("x-stream-id", name)])
    assert answer.data == b"ok", (answer.code, answer.text)
    assert answer.headers["x-request-id"] == [name]
    assert answer.headers["x-stream-id"] == [name]

    def no_file_was_made() -> bool:
        now = everything_in(stack.daemon.folder) | everything_in(stack.daemon.shm_dir)
        return now <= before

    eventually(no_file_was_made, what="no file of that name")


def everything_in(folder: pathlib.Path) -> set[pathlib.Path]:
    return set(folder.rglob("*"))


def test_ids_that_are_too_long_are_invalid(grpc_caller: GrpcCaller) -> None:
    answer = grpc_caller.ask(replay([b"ok"]), [("x-request-id", "n" * 257)])
    refused(answer, "INVALID_ARGUMENT", "x-request-id", "256")


def test_no_engine_is_unavailable_and_says_so() -> None:
    with Stack(engine=None) as empty, grpc.insecure_channel(empty.daemon.grpc_address) as channel:
        stub = rrpa_pb2_grpc.RRPAServiceStub(channel)
        refused(collect(stub.CreateStream(Request(model="test"))), "UNAVAILABLE", "engine")
