"""Streams that outlive a caller's connection: every byte once, whoever reads, from where (R1)."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from rrpa_sidecar.pb import rrpa_pb2 as pb
from tests.conformance.asking import replay
from tests.conformance.callers import (
    GRPC_ROWS,
    ROWS,
    Answer,
    Caller,
    GrpcCaller,
    HttpCaller,
    Request,
    collect,
)
from tests.conformance.conftest import DOORS, FRONT_ENDS, MIB
from tests.harness.processes import Stack, eventually

WINDOW_S = 0.5
SHM_TIMEOUT_S = 3.0
RESUMABLE = [("x-resumable", "1")]
UNKNOWN = "0123456789abcdef" * 2

# Characters of 1 to 4 bytes and what can never be one, cut inside characters too.
TOKENS = [
    b"aZ ",
    "ß".encode(),
    b"\xff",
    "€".encode()[:1],
    "€".encode()[1:],
    b"\xf0\x9f",
    b"\x98\x80",
]
TOKENS += [b"\xe2\x82", b"x", b"\xed\xa0", "한".encode() + b"\xc3", b"", b"\xbc!", b"\xf0\x9f"]
TEXT = b"".join(TOKENS).decode("utf-8", "replace").encode()


@pytest.fixture(scope="module", params=FRONT_ENDS)
def resuming(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """A product that gives its streams up early, with each front end at both its doors."""
    listen, envoy = DOORS[request.param]
    daemon = {
        "shm_bytes": 256 * MIB,
        "stream_bytes": MIB,
        "resume_window_s": WINDOW_S,
        "shm_timeout_s": SHM_TIMEOUT_S,
        "listen_frontend": listen,
        "envoy_frontend": envoy,
    }
    with Stack(daemon, engine={"capacity": 64}, envoy=True) as running:
        yield running
        eventually(lambda: not running.daemon.segments(), SHM_TIMEOUT_S + 3, "no file is left")
        assert running.daemon.metric("rrpa_shm_utilization_percent") == 0


@pytest.fixture(params=list(ROWS))
def caller(request: pytest.FixtureRequest, resuming: Stack) -> Iterator[Caller]:
    made = ROWS[request.param](resuming)
    yield made
    made.close()


@pytest.fixture(params=GRPC_ROWS)
def grpc_caller(request: pytest.FixtureRequest, resuming: Stack) -> Iterator[GrpcCaller]:
    made = ROWS[request.param](resuming)
    assert isinstance(made, GrpcCaller)
    yield made
    made.close()


@pytest.fixture
def callers(resuming: Stack) -> Iterator[list[Caller]]:
    """All ways in, for what waits long."""
    made = [row(resuming) for row in ROWS.values()]
    yield made
    for each in made:
        each.close()


@pytest.fixture(autouse=True)
def no_slot_stays_taken(resuming: Stack) -> Iterator[None]:
    yield
    daemon = resuming.daemon
    eventually(lambda: daemon.metric("rrpa_active_streams") == 0, what="no stream is active")


def name_of(answer: Answer) -> str:
    (name,) = answer.headers["rrpa-stream-id"]
    return name


def created(caller: GrpcCaller, request: Request) -> tuple[Any, str]:
    """Begin a resumable stream; return the call and the stream's id."""
    call = caller.stub.CreateStream(request, timeout=60, metadata=RESUMABLE)
    return call, dict(call.initial_metadata())["rrpa-stream-id"]


def resumed(caller: GrpcCaller, name: str, offset: int = 0) -> Any:
    return caller.stub.ResumeStream(pb.ResumeStreamRequest(stream_id=name, offset=offset))


def read(call: Any, size: int) -> bytes:
    """Read frames until there are `size` bytes."""
    data = b""
    while len(data) < size:
        frame = next(call)
        assert frame.data
        data += frame.data
    return data


def check_rest(answer: Answer, text: bytes, offset: int) -> None:
    """`answer` is exactly what follows `offset` of the whole `text`, in frames that say so."""
    assert (answer.code, answer.complete) == ("OK", True), (answer.code, answer.text, offset)
    assert answer.data == text[offset:], offset
    if not answer.frames:
        return
    at = offset
    for frame in answer.frames[:-1]:
        assert (frame.offset, frame.data != b"") == (at, True)
        at += len(frame.data)
    assert answer.frames[-1].offset == at
    assert answer.finish is not None
    assert answer.finish.usage.completion_tokens
    assert answer.trailers["rrpa-offset"] == [str(len(text))]
    assert "server-timing" not in answer.trailers


def test_every_offset_of_a_stream_that_is_over_gives_exactly_the_rest(caller: Caller) -> None:
    whole = caller.ask(replay(TOKENS), RESUMABLE)
    assert whole.data == TEXT
    asked_s = time.monotonic()
    for offset in range(len(TEXT) + 1):
        before_s, asked_s = asked_s, time.monotonic()
        answer = caller.resume(name_of(whole), offset)
        late = time.monotonic() - before_s >= SHM_TIMEOUT_S
        if answer.code in ("NOT_FOUND", "404") and late:  # this machine was too busy
            whole = caller.ask(replay(TOKENS), RESUMABLE)
            answer = caller.resume(name_of(whole), offset)
        check_rest(answer, TEXT, offset)


def test_every_offset_of_a_live_stream_gives_exactly_the_rest(grpc_caller: GrpcCaller) -> None:
    # The last token's half a character is not told before more is known.
    text = b"".join(TOKENS[:-1]).decode("utf-8", "replace").encode()
    first, name = created(grpc_caller, replay([*TOKENS, b"end"], delays_s=[0] * len(TOKENS) + [60]))
    read(first, len(text))
    for offset in range(len(text)):
        call = resumed(grpc_caller, name, offset)
        assert read(call, len(text) - offset) == text[offset:]
        call.cancel()
    grpc_caller.stub.CancelStream(pb.CancelStreamRequest(stream_id=name))
    assert first.initial_metadata()
    assert collect(first).finish.reason == pb.FINISH_REASON_CANCELLED  # type: ignore[union-attr]


def test_all_that_a_caller_has_and_the_finish_alone_follows(grpc_caller: GrpcCaller) -> None:
    whole = grpc_caller.ask(replay([b"all"]), RESUMABLE)
    again = grpc_caller.resume(name_of(whole), 3)
    assert again.data == b""
    assert again.frames == [whole.frames[-1]]


def test_readers_at_once_get_equal_bytes_wherever_they_began(grpc_caller: GrpcCaller) -> None:
    tokens = [f"{n}€ ".encode() for n in range(150)]
    text = b"".join(tokens)
    first, name = created(grpc_caller, replay(tokens, between_s=0.004))
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        begun = read(first, 30)
        calls = [pool.submit(grpc_caller.resume, name, offset) for offset in (0, 1, 17, len(begun))]
        rest = collect(first)
        answers = [each.result() for each in calls]
    assert begun + rest.data == text
    for answer, offset in zip(answers, (0, 1, 17, len(begun)), strict=True):
        check_rest(answer, text, offset)


def test_who_comes_back_within_the_window_misses_nothing(
    resuming: Stack, grpc_caller: GrpcCaller
) -> None:
    tokens = [f"{n} ".encode() for n in range(200)]
    call, name = created(grpc_caller, replay(tokens, between_s=0.005))
    data = read(call, 1)
    for _ in range(4):
        call.cancel()
        time.sleep(0.05)
        call = resumed(grpc_caller, name, len(data))
        data += next(call).data  # none in the Finish, when a busy machine comes back so late
    rest = collect(call)
    assert (rest.code, data + rest.data) == ("OK", b"".join(tokens))


def test_the_window_is_told_and_after_it_the_engine_has_stopped(
    resuming: Stack, callers: list[Caller]
) -> None:
    request = replay([b"x"], repeat=100_000, between_s=0.01)
    grpc_callers = [each for each in callers if isinstance(each, GrpcCaller)]
    assert len(grpc_callers) == len(GRPC_ROWS)
    names, held = [], []
    for caller in grpc_callers:
        call, name = created(caller, request)
        assert dict(call.initial_metadata())["rrpa-resume-window"] == f"{WINDOW_S:g}"
        names.append(name)
        held.append(len(read(call, 3)))
        call.cancel()
    left_s = time.monotonic()
    daemon = resuming.daemon
    eventually(lambda: daemon.metric("rrpa_active_streams") == 0, 5, "their engine has stopped")
    assert time.monotonic() - left_s >= WINDOW_S
    for caller, name, size in zip(grpc_callers, names, held, strict=True):
        answer = caller.resume(name, size)
        assert answer.finish is not None, (answer.code, answer.text)
        assert answer.finish.reason == pb.FINISH_REASON_CANCELLED
        assert len(answer.data) >= (WINDOW_S - 0.2) / 0.01 / 4, "it went on without a reader"


def test_a_stream_that_is_over_stays_for_the_timeout_and_is_not_found_then(
    resuming: Stack, callers: list[Caller]
) -> None:
    asked_s = time.monotonic()
    names = [name_of(caller.ask(replay([b"over"]), RESUMABLE)) for caller in callers]
    # The second time it is longer than the timeout since its end, but not since it was read.
    for _ in range(2):
        time.sleep(SHM_TIMEOUT_S * 0.6)
        before_s, asked_s = asked_s, time.monotonic()
        for caller, name in zip(callers, names, strict=True):
            answer = caller.resume(name, 1)
            if time.monotonic() - before_s < SHM_TIMEOUT_S:  # else this machine was too busy
                check_rest(answer, b"over", 1)
    eventually(lambda: not resuming.daemon.segments(), SHM_TIMEOUT_S + 3, "the files are gone")
    for caller, name in zip(callers, names, strict=True):
        gone = caller.resume(name)
        assert gone.code in ("NOT_FOUND", "404")
        assert "stream" in gone.text


def soonest(took_s: Callable[[], float]) -> float:
    """Return the shortest of three tries: others may have the machine during one."""
    return min(took_s() for _ in range(3))


def seconds_until(condition: Callable[[], bool]) -> float:
    begun_s = time.monotonic()
    eventually(condition, 10)
    return time.monotonic() - begun_s


def test_leaving_without_asking_to_be_resumable_aborts_at_once(
    resuming: Stack, grpc_caller: GrpcCaller
) -> None:
    request = replay([b"x"], repeat=10_000, between_s=0.01)

    def until_its_file_is_gone() -> float:
        call = grpc_caller.stub.CreateStream(request, timeout=60)
        initial = dict(call.initial_metadata())
        assert "rrpa-resume-window" not in initial
        name = initial["rrpa-stream-id"]
        next(call)
        call.cancel()
        took_s = seconds_until(lambda: f"rrpa_{name}" not in resuming.daemon.segments())
        assert grpc_caller.resume(name).code == "NOT_FOUND"
        return took_s

    assert soonest(until_its_file_is_gone) < WINDOW_S


def test_an_unknown_stream_is_not_found_in_a_sentence(caller: Caller) -> None:
    answer = caller.resume(UNKNOWN)
    assert answer.code in ("NOT_FOUND", "404")
    assert "stream" in answer.text
    assert "rrpa-offset" not in answer.trailers


@pytest.mark.parametrize(
    "name",
    ["x", UNKNOWN[1:], UNKNOWN + "0", UNKNOWN.upper(), "rrpa_" + UNKNOWN[5:], "..%2f" + UNKNOWN],
)
def test_what_is_no_id_is_invalid_and_opens_nothing(caller: Caller, name: str) -> None:
    answer = caller.resume(name)
    assert answer.code in ("INVALID_ARGUMENT", "400", "404"), (answer.code, answer.text)
    assert answer.code != "404" or "%2f" in name
    assert answer.text


def test_an_offset_beyond_the_stream_is_out_of_range_with_both_numbers(caller: Caller) -> None:
    whole = caller.ask(replay([b"four"]), RESUMABLE)
    answer = caller.resume(name_of(whole), 123)
    assert answer.code in ("OUT_OF_RANGE", "400"), (answer.code, answer.text)
    assert "123" in answer.text
    assert "4" in answer.text.replace("123", "")
    largest = caller.resume(name_of(whole), 2**64 - 1)
    assert largest.code in ("OUT_OF_RANGE", "400")


def test_an_offset_beyond_a_live_stream_is_out_of_range_and_harms_nobody(
    grpc_caller: GrpcCaller,
) -> None:
    first, name = created(grpc_caller, replay([b"four", b"!"], between_s=0.5))
    assert read(first, 4) == b"four"
    answer = grpc_caller.resume(name, 6)
    assert answer.code == "OUT_OF_RANGE"
    assert collect(first).data == b"!"


def test_a_stream_that_failed_fails_again_after_its_bytes(grpc_caller: GrpcCaller) -> None:
    whole = grpc_caller.ask(replay([b"half ", b"done"], code=13, text="it broke"), RESUMABLE)
    for offset in (0, 3, 9):
        again = grpc_caller.resume(name_of(whole), offset)
        assert (again.code, again.text) == (whole.code, whole.text) == ("INTERNAL", "it broke")
        assert again.data == b"half done"[offset:]
        assert again.trailers["rrpa-offset"] == ["9"]


def test_cancel_ends_a_stream_for_all_who_read_it(resuming: Stack, grpc_caller: GrpcCaller) -> None:
    first, name = created(grpc_caller, replay([b"x"], repeat=100_000, between_s=0.01))
    second = resumed(grpc_caller, name)
    read(first, 2)
    read(second, 1)
    request = pb.CancelStreamRequest(stream_id=name)
    grpc_caller.stub.CancelStream(request)
    for call in (first, second):
        answer = collect(call)
        assert answer.code == "OK"
        assert answer.finish is not None
        assert answer.finish.reason == pb.FINISH_REASON_CANCELLED
    grpc_caller.stub.CancelStream(request)
    assert grpc_caller.resume(name).finish.reason == pb.FINISH_REASON_CANCELLED  # type: ignore[union-attr]


def test_a_stopped_stream_looks_whole_to_nobody(caller: Caller) -> None:
    first = caller.ask(replay([b"half of ", b"it"], reason="cancelled"), RESUMABLE)
    for answer in (first, caller.resume(name_of(first))):
        assert b"half of it".startswith(answer.data)
        if isinstance(caller, GrpcCaller):
            assert answer.finish is not None
            assert answer.finish.reason == pb.FINISH_REASON_CANCELLED
        else:  # no frame can say so
            assert not answer.complete


def test_cancel_ends_a_stream_that_nobody_reads_at_once(
    resuming: Stack, grpc_caller: GrpcCaller
) -> None:
    daemon = resuming.daemon

    def until_it_has_stopped() -> float:
        call, name = created(grpc_caller, replay([b"x"], repeat=100_000, between_s=0.01))
        read(call, 1)
        call.cancel()
        grpc_caller.stub.CancelStream(pb.CancelStreamRequest(stream_id=name))
        return seconds_until(lambda: daemon.metric("rrpa_active_streams") == 0)

    assert soonest(until_it_has_stopped) < WINDOW_S / 2


@pytest.mark.parametrize(
    ("name", "code"), [("x", "INVALID_ARGUMENT"), ("", "INVALID_ARGUMENT"), (UNKNOWN, "NOT_FOUND")]
)
def test_cancel_of_what_is_no_stream_says_so(grpc_caller: GrpcCaller, name: str, code: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        grpc_caller.stub.CancelStream(pb.CancelStreamRequest(stream_id=name))
    assert caught.value.code().name == code
    assert caught.value.details()


def test_a_resumed_call_is_no_first_token(resuming: Stack, grpc_caller: GrpcCaller) -> None:
    names = ["first_token_latency_seconds_count", "engine_first_token_seconds_count"]
    names += ["queue_wait_seconds_count"]

    def counts() -> list[float]:
        return [resuming.daemon.metric(f"rrpa_{name}", model="test") for name in names]

    before = counts()
    whole = grpc_caller.ask(replay([b"a", b"b"], between_s=0.02), RESUMABLE)
    for offset in range(3):
        grpc_caller.resume(name_of(whole), offset)
    assert [now - then for now, then in zip(counts(), before, strict=True)] == [1, 1, 1]


def test_curl_that_was_killed_half_way_gets_the_rest_with_get(resuming: Stack) -> None:
    caller = ROWS["http-envoy"](resuming)
    assert isinstance(caller, HttpCaller)
    tokens = [f"{n}€ ".encode() for n in range(100)]
    argv = caller.argv(replay(tokens, between_s=0.01), RESUMABLE)
    with subprocess.Popen([*argv, "--include"], stdout=subprocess.PIPE, bufsize=0) as curl:
        assert curl.stdout is not None
        said = b""
        while len(said.partition(b"\r\n\r\n")[2]) < 40:
            said += os.read(curl.stdout.fileno(), 65536)
        curl.kill()
    head, _, body = said.partition(b"\r\n\r\n")
    fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
    assert fields[b"rrpa-resume-window"] == f"{WINDOW_S:g}".encode()
    rest = caller.resume(fields[b"rrpa-stream-id"].decode(), len(body))
    assert (rest.code, body + rest.data) == ("OK", b"".join(tokens))
    assert rest.headers["content-type"] == ["text/plain; charset=utf-8"]


@pytest.mark.parametrize(
    ("query", "code"), [("?offset=x", "400"), ("?offset=-1", "400"), ("?from=1", "400")]
)
def test_a_query_that_is_none_is_refused_in_a_line(resuming: Stack, query: str, code: str) -> None:
    caller = ROWS["http-envoy"](resuming)
    answer = caller.resume(UNKNOWN + query)
    assert answer.code == code, answer.text
    assert 0 < len(answer.text.encode()) < 200
    assert answer.text.isprintable()
