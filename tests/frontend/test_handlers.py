"""A call ↔ events of a stream: what the caller sees, what is counted, and that it is left."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator

import grpc
import pytest
from google.api.httpbody_pb2 import HttpBody

from rrpa_sidecar import errors
from rrpa_sidecar.frontend.grpcio.handlers import GRPC_CODES, INTERRUPTED
from rrpa_sidecar.pb import rrpa_pb2 as pb
from rrpa_sidecar.status import CODES, Code, status_of
from tests.frontend.fakes import FakeStream, Front

IDS = (("x-request-id", "r-1"), ("x-stream-id", "s-1"))


async def until(condition: Callable[[], object], timeout_s: float = 2) -> None:
    """Let the loop run until `condition()` is true."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.001)


def frames(raw: list[bytes]) -> list[pb.CreateStreamResponse]:
    return [pb.CreateStreamResponse.FromString(each) for each in raw]


def keys(metadata: object) -> dict[str, str]:
    return dict(metadata or ())  # type: ignore[call-overload]


def stopped(offset: int, resumable: bool) -> errors.Draining:
    return errors.Draining(f"stopped after {offset} {resumable}")


async def opened(front: Front) -> FakeStream:
    await until(lambda: front.broker.streams and front.broker.streams[-1].waker)
    return front.broker.streams[-1]


async def test_request_bytes_reach_the_broker_untouched(front: Front) -> None:
    request = pb.CreateStreamRequest(model="test").SerializeToString() + b"\xfa\x01\x03abc"
    front.broker.on_open = lambda stream: stream.finish()
    assert len([frame async for frame in front.stream(request)]) == 1
    assert front.broker.requests == [request]


async def test_frames_carry_offsets_and_one_finish_is_last(front: Front) -> None:
    call = front.stream()
    stream = await opened(front)
    stream.data("héllo".encode())
    stream.data("🙂".encode())
    stream.finish(reason=2)
    first, second, last = frames([frame async for frame in call])
    assert (first.offset, first.data) == (0, "héllo".encode())
    assert (second.offset, second.data) == (6, "🙂".encode())
    assert (last.offset, last.finish.reason) == (10, pb.FINISH_REASON_LENGTH)
    assert (last.finish.usage.prompt_tokens, last.finish.usage.completion_tokens) == (3, 4)
    assert not last.finish.HasField("stop_sequence")
    assert await call.code() is grpc.StatusCode.OK
    assert (stream.left, stream.waker) == (1, None)
    assert front.codes() == {"OK": 1}


@pytest.mark.parametrize(
    ("said", "told"), [(99, 99), (2**31 - 1, 2**31 - 1), (2**31, 0), (2**32 - 1, 0)]
)
async def test_a_reason_that_no_enum_can_hold_is_told_as_unspecified(
    front: Front, said: int, told: int
) -> None:
    front.broker.on_open = lambda stream: stream.finish(reason=said)
    call = front.stream()
    (last,) = frames([frame async for frame in call])
    assert last.finish.reason == told
    assert await call.code() is grpc.StatusCode.OK


async def test_message_bodies_joined_are_the_answer_and_the_first_names_the_type(
    front: Front,
) -> None:
    call = front.message()
    stream = await opened(front)
    for part in (b"a", b"\x00", "é".encode()):
        stream.data(part)
    stream.finish()
    bodies = [HttpBody.FromString(raw) async for raw in call]
    assert b"".join(body.data for body in bodies) == "a\x00é".encode()
    assert [body.content_type for body in bodies] == ["text/plain; charset=utf-8", "", ""]


async def test_a_message_with_no_token_is_one_empty_text(front: Front) -> None:
    front.broker.on_open = lambda stream: stream.finish()
    (body,) = [HttpBody.FromString(raw) async for raw in front.message()]
    assert (body.content_type, body.data) == ("text/plain; charset=utf-8", b"")


async def test_a_message_of_a_stopped_stream_ends_with_cancelled(front: Front) -> None:
    call = front.message()
    stream = await opened(front)
    stream.data(b"half")
    stream.finish(reason=pb.FINISH_REASON_CANCELLED)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        [raw async for raw in call]
    assert caught.value.code() is grpc.StatusCode.CANCELLED
    assert "stopped after 4 bytes" in (caught.value.details() or "")


async def test_initial_metadata_comes_on_acceptance_before_any_token(front: Front) -> None:
    call = front.stream(metadata=IDS)
    async with asyncio.timeout(2):
        initial = keys(await call.initial_metadata())
    stream = await opened(front)
    assert not stream.events
    assert initial == {**dict(IDS), "rrpa-stream-id": stream.stream_id}
    call.cancel()


async def test_trailing_metadata_repeats_the_ids_and_says_offset_and_timing(front: Front) -> None:
    call = front.stream(metadata=IDS)
    stream = await opened(front)
    accepted_ns = stream.timing.accepted_ns
    stream.timing.submitted_ns = accepted_ns + 100_000
    stream.timing.first_commit_ns = accepted_ns + 20_300_000
    stream.data(b"four")
    stream.finish()
    assert [frame async for frame in call]
    trailing = keys(await call.trailing_metadata())
    assert trailing["x-request-id"] == "r-1"
    assert trailing["x-stream-id"] == "s-1"
    assert trailing["rrpa-offset"] == "4"
    assert trailing["server-timing"].startswith("queue;dur=0.1, engine;dur=20.2, sidecar;dur=")


async def test_an_answer_with_no_token_has_no_timing_and_no_first_token(front: Front) -> None:
    front.broker.on_open = lambda stream: stream.finish()
    call = front.stream()
    assert [frame async for frame in call]
    trailing = keys(await call.trailing_metadata())
    assert trailing["rrpa-offset"] == "0"
    assert "server-timing" not in trailing
    assert sum(front.metrics.model("test").first_token_s.counts) == 0


async def test_ids_are_made_up_when_absent_or_empty(front: Front) -> None:
    front.broker.on_open = lambda stream: stream.finish()
    seen = set()
    for metadata in ((), (("x-request-id", ""), ("x-stream-id", ""))):
        call = front.stream(metadata=metadata)
        initial = keys(await call.initial_metadata())
        seen |= {initial["x-request-id"], initial["x-stream-id"]}
        assert [frame async for frame in call]
    assert len(seen) == 4
    assert all(len(each) == 32 for each in seen)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ((("x-request-id", "a"), ("x-request-id", "b")), "given twice"),
        ((("x-request-id", "a"), ("x-request-id", "")), "given twice"),
        ((("x-stream-id", "a" * 257),), "257 bytes"),
        ((("x-priority", "high"),), "integer from -100 to 100"),
        ((("x-priority", "101"),), "integer"),
        ((("x-priority", "--1"),), "integer"),
        ((("x-priority", "+1"),), "integer"),
        ((("x-resumable", "yes"),), "'yes'; expected 1 or 0"),
        ((("x-resumable", "2"),), "expected 1 or 0"),
        ((("x-resumable", "1"), ("x-resumable", "1")), "given twice"),
    ],
)
async def test_metadata_that_breaks_the_rules_is_invalid_argument(
    front: Front, metadata: tuple[tuple[str, str], ...], words: str
) -> None:
    for call in (front.stream(metadata=metadata), front.message(metadata=metadata)):
        assert [frame async for frame in no_error(call)] == []
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert words in await call.details()
    assert front.broker.streams == []


@pytest.mark.parametrize(
    ("text", "priority"), [("", 0), ("-100", -100), ("100", 100), ("-0", 0), ("007", 7)]
)
async def test_priority_reaches_the_broker(front: Front, text: str, priority: int) -> None:
    front.broker.on_open = lambda stream: stream.finish()
    metadata = (("x-priority", text), ("traceparent", "00-ab-cd-01"), ("x-request-id", "a" * 256))
    assert [frame async for frame in front.stream(metadata=metadata)]
    labels = front.broker.streams[-1].labels
    assert (labels.priority, labels.traceparent) == (priority, "00-ab-cd-01")
    assert labels.request_id == "a" * 256


async def no_error(call: grpc.aio.UnaryStreamCall) -> Iterator[bytes]:  # type: ignore[misc]
    """Yield the frames of `call` and swallow its status."""
    try:
        async for frame in call:
            yield frame
    except grpc.aio.AioRpcError:
        pass


ALL_ERRORS = [kind("what is wrong and what to do") for kind in CODES]


@pytest.mark.parametrize("error", ALL_ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("when", ["refused", "first", "later", "raised"])
@pytest.mark.parametrize("method", ["stream", "message"])
async def test_every_error_has_its_code_at_every_moment(
    front: Front, error: errors.RRPAError, when: str, method: str
) -> None:
    def fail(stream: FakeStream) -> None:
        if when == "later":
            stream.data(b"abc")
        if when == "raised":
            stream.put(error)
        else:
            stream.fail(error)

    if when == "refused":
        front.broker.refusal = error
    front.broker.on_open = fail
    call = getattr(front, method)(metadata=IDS)
    got = [frame async for frame in no_error(call)]
    code, text = status_of(error)
    assert await call.code() is GRPC_CODES[code]
    assert await call.details() == text
    assert len(got) == (when == "later")
    trailing = keys(await call.trailing_metadata())
    assert {**trailing, **dict(IDS)} == trailing
    assert trailing.get("rrpa-offset") == {"refused": None, "later": "3"}.get(when, "0")
    assert all(stream.left == 1 for stream in front.broker.streams)
    await until(lambda: sum(front.metrics.model("").codes) == 1)
    assert front.metrics.model("").codes[code] == 1
    assert front.handlers.open_calls == 0


@pytest.mark.parametrize("code", [*range(20), 2**31])
async def test_a_status_the_engine_chose_is_passed_on_but_never_ok_or_unknown(
    front: Front, code: int
) -> None:
    front.broker.on_open = lambda stream: stream.fail(errors.EngineStatus(code, "engine says"))
    call = front.stream()
    assert [frame async for frame in no_error(call)] == []
    expected = Code.INTERNAL if code in (0, 2) or code > 16 else Code(code)
    assert await call.code() is GRPC_CODES[expected]
    assert await call.details() == "engine says"


@pytest.mark.parametrize("where", ["open", "poll"])
async def test_a_fault_of_our_own_is_internal_and_its_text_only_in_the_log(
    front: Front, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    fault = ZeroDivisionError("secret")
    if where == "open":
        front.broker.refusal = fault
    front.broker.on_open = lambda stream: stream.put(fault)
    call = front.stream(metadata=IDS)
    assert [frame async for frame in no_error(call)] == []
    assert await call.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in await call.details()
    assert "secret" in caplog.text
    assert "request_id=r-1" in caplog.text


async def test_a_long_error_text_with_emoji_newlines_and_nul_is_one_short_line_for_the_caller(
    front: Front, caplog: pytest.LogCaptureFixture
) -> None:
    text = "Traceback 🙂\n\0 ünï\r\n" * 2000 + "the end"
    front.broker.on_open = lambda stream: stream.fail(errors.EngineStatus(13, text))
    call = front.stream()
    assert [frame async for frame in no_error(call)] == []
    details = await call.details()
    assert await call.code() is grpc.StatusCode.INTERNAL
    assert 190 <= len(details.encode()) < 200
    assert details.isprintable()
    assert details.startswith("Traceback 🙂 ünï Traceback")
    assert "the end" in caplog.text


async def test_list_models_answers_and_fails_plainly(front: Front) -> None:
    ask = front.channel.unary_unary("/rrpa.v1.RRPAService/ListModels")
    models = pb.ListModelsResponse.FromString(await ask(b"")).models
    assert [(m.name, m.engines, m.capacity, m.active) for m in models] == [
        ("a", 1, 2, 0),
        ("b", 2, 4, 3),
    ]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(b"\x0a")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    front.broker.refusal = RuntimeError("x")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(b"")
    assert caught.value.code() is grpc.StatusCode.INTERNAL


@pytest.mark.parametrize("tokens", [0, 1, 3])
async def test_a_client_that_cancels_is_left_at_once_with_gc_off(front: Front, tokens: int) -> None:
    gc.disable()
    try:
        call = front.stream()
        stream = await opened(front)
        for _ in range(tokens):
            stream.data(b"x")
            assert await call.read()
        call.cancel()
        await until(lambda: stream.left, timeout_s=0.5)
    finally:
        gc.enable()
    assert stream.left == 1
    await until(lambda: front.codes() == {"CANCELLED": 1})
    assert front.handlers.open_calls == 0


async def test_a_deadline_is_handed_to_the_broker_and_ends_the_call(front: Front) -> None:
    call = front.stream(timeout=0.2)
    stream = await opened(front)
    # gRPC sends whole milliseconds, rounded up, and reads them against the wall clock.
    assert 0 < (front.broker.timeouts[0] or 0) < 0.25
    assert [frame async for frame in no_error(call)] == []
    assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: stream.left)
    await until(lambda: front.codes() == {"DEADLINE_EXCEEDED": 1})


async def test_no_deadline_is_none(front: Front) -> None:
    front.broker.on_open = lambda stream: stream.finish()
    assert [frame async for frame in front.stream()]
    assert front.broker.timeouts == [None]


async def test_an_internal_cancellation_ends_with_a_status_and_never_ok(
    grpcio_front: Front,
) -> None:
    call = grpcio_front.stream()
    stream = await opened(grpcio_front)
    stream.data(b"abc")
    assert await call.read()
    (task,) = [t for t in asyncio.all_tasks() if t.get_name().startswith("HandleExceptions")]
    task.cancel()
    async with asyncio.timeout(1):
        assert await call.code() is grpc.StatusCode.INTERNAL
    assert await call.details() == INTERRUPTED
    assert stream.left == 1
    # gRPC never frees what it could not send, and the same is said to callers that are gone: a
    # slice of 23 bytes has no memory of its own. 40,000 mixed endings left 12.7 MB behind.
    assert len(INTERRUPTED.encode()) <= 23
    assert dict(await call.trailing_metadata() or ()) == {}


async def test_nothing_is_polled_while_nothing_moves(front: Front) -> None:
    call = front.stream()
    stream = await opened(front)
    await until(lambda: stream.polls)
    polls = stream.polls
    await asyncio.sleep(0.1)  # real time on purpose: there must be no timer
    assert stream.polls == polls
    call.cancel()


async def test_news_between_poll_and_wait_are_not_lost(front: Front) -> None:
    call = front.stream()
    stream = await opened(front)
    silent = stream.poll

    def poll_then_news(limit_bytes: int = 65536) -> object:
        event = silent(limit_bytes)
        if event is None and not stream.offset:
            stream.data(b"late")
        return event

    stream.poll = poll_then_news  # type: ignore[method-assign,assignment]
    stream.waker()  # type: ignore[misc]
    async with asyncio.timeout(1):
        frame = pb.CreateStreamResponse.FromString(await call.read())
    assert frame.data == b"late"
    call.cancel()


async def test_end_all_ends_open_calls_with_what_they_have(front: Front) -> None:
    calls = [front.stream() for _ in range(3)]
    await until(lambda: len([s for s in front.broker.streams if s.waker]) == 3)
    for stream in front.broker.streams:
        stream.data(b"part")
    for call in calls:
        assert await call.read()
    assert front.handlers.open_calls == 3
    front.handlers.end_all(stopped)
    for call in calls:
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert await call.details() == "stopped after 4 False"
        assert keys(await call.trailing_metadata())["rrpa-offset"] == "4"
    assert [stream.left for stream in front.broker.streams] == [1, 1, 1]
    assert front.handlers.open_calls == 0


async def test_a_call_counts_as_open_and_can_be_ended_while_its_acceptance_is_being_sent(
    grpcio_front: Front,
) -> None:
    sending, sent = asyncio.Event(), asyncio.Event()

    async def slowly(metadata: object) -> None:
        sending.set()
        await sent.wait()

    class Context:
        """A caller without deadline whose connection takes nothing yet."""

        code = details = trailing = None
        send_initial_metadata = staticmethod(slowly)

        def invocation_metadata(self) -> tuple[()]:
            return ()

        def time_remaining(self) -> None:
            return None

        def set_code(self, code: grpc.StatusCode) -> None:
            self.code = code

        def set_details(self, details: str) -> None:
            self.details = details

        def set_trailing_metadata(self, metadata: object) -> None:
            self.trailing = metadata

    context = Context()
    serving = asyncio.create_task(grpcio_front.handlers.create_stream(b"", context))  # type: ignore[arg-type]
    await sending.wait()
    assert grpcio_front.handlers.open_calls == 1, "a drain that begins now would not wait for it"
    grpcio_front.handlers.end_all(stopped)
    sent.set()
    await serving
    assert context.code is grpc.StatusCode.UNAVAILABLE
    assert [stream.left for stream in grpcio_front.broker.streams] == [1]
    assert grpcio_front.handlers.open_calls == 0


async def test_a_client_that_does_not_read_holds_back_only_its_own_stream(front: Front) -> None:
    # On connections of their own: within one, HTTP/2 has a window that all its calls share.
    slow, fast = front.stream(), await front.stream_of_another_connection()
    await until(lambda: len([s for s in front.broker.streams if s.waker]) == 2)
    held, free = front.broker.streams
    for _ in range(200):
        held.data(b"x" * 65536)
    free.data(b"hello")
    free.finish()
    async with asyncio.timeout(2):
        assert len([frame async for frame in fast]) == 2
    await until(lambda: front.metrics.model("test").frames > 1)
    await asyncio.sleep(0.1)
    assert len(held.events) > 100, "taken from the stream only as fast as the client reads"
    slow.cancel()
    await until(lambda: held.left)


async def test_one_line_is_logged_for_each_call_and_none_for_a_token(
    front: Front, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    call = front.stream(metadata=IDS)
    stream = await opened(front)
    for _ in range(50):
        stream.data(b"x")
    stream.finish()
    assert len([frame async for frame in call]) == 51
    await until(lambda: front.codes())
    (line,) = [r.getMessage() for r in caplog.records if r.name.startswith("rrpa_sidecar")]
    assert line.startswith("call ended code=OK request_id=r-1 stream_id=s-1 ")
    assert line.endswith("bytes=50 finish=STOP")


async def test_times_are_observed_once_for_the_first_token_and_once_for_each_gap(
    front: Front,
) -> None:
    call = front.stream()
    stream = await opened(front)
    for _ in range(4):
        stream.data(b"x")
    stream.finish()
    assert [frame async for frame in call]
    counters = front.metrics.model("test")
    assert sum(counters.first_token_s.counts) == 1
    assert sum(counters.inter_token_s.counts) == 3
    assert (counters.frames, counters.delivered_bytes) == (4, 4)
