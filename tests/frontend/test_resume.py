"""Resumed and resumable calls: what the caller sees, what is counted, and that they are left."""

from __future__ import annotations

import grpc
import pytest
from google.api.httpbody_pb2 import HttpBody

from rrpa_sidecar import errors
from rrpa_sidecar.frontend.grpcio.handlers import GRPC_CODES
from rrpa_sidecar.pb import rrpa_pb2 as pb
from rrpa_sidecar.status import status_of
from tests.frontend.fakes import CANCEL, RESUME, RESUME_MESSAGE, FakeStream, Front
from tests.frontend.test_handlers import ALL_ERRORS, frames, keys, no_error, opened, stopped, until

ID = "0123456789abcdef" * 2
REQUEST = pb.ResumeStreamRequest(stream_id=ID, offset=7).SerializeToString()


def speak(stream: FakeStream) -> None:
    """The rest of an answer that goes on at 7."""
    stream.data(b"four")
    stream.data(b"five5")
    stream.finish()


async def test_a_resumed_call_goes_on_at_its_offset_and_ends_as_any_other(front: Front) -> None:
    front.broker.on_open = speak
    call = front.resume(REQUEST)
    first, second, last = frames([frame async for frame in call])
    assert (first.offset, first.data) == (7, b"four")
    assert (second.offset, second.data) == (11, b"five5")
    assert (last.offset, last.finish.reason) == (16, pb.FINISH_REASON_STOP)
    assert await call.code() is grpc.StatusCode.OK
    assert keys(await call.initial_metadata())["rrpa-stream-id"] == ID
    (stream,) = front.broker.streams
    assert (stream.stream_id, stream.start_offset, stream.left) == (ID, 7, 1)


async def test_bodies_of_a_resumed_message_are_the_rest_and_the_first_names_the_type(
    front: Front,
) -> None:
    front.broker.on_open = speak
    bodies = [HttpBody.FromString(raw) async for raw in front.resume(REQUEST, RESUME_MESSAGE)]
    assert [body.data for body in bodies] == [b"four", b"five5"]
    assert [body.content_type for body in bodies] == ["text/plain; charset=utf-8", ""]


@pytest.mark.parametrize("method", [RESUME, RESUME_MESSAGE])
async def test_the_offset_in_the_trailers_is_what_the_caller_holds(
    front: Front, method: str
) -> None:
    def fail(stream: FakeStream) -> None:
        stream.data(b"four")
        stream.fail(errors.EngineLost("engine x was lost"))

    front.broker.on_open = fail
    call = front.resume(REQUEST, method)
    assert len([frame async for frame in no_error(call)]) == 1
    assert await call.code() is grpc.StatusCode.UNAVAILABLE
    assert keys(await call.trailing_metadata())["rrpa-offset"] == "11"


async def test_a_resumed_call_has_no_first_token_and_no_server_timing(front: Front) -> None:
    def speak_as_if_timed(stream: FakeStream) -> None:
        stream.timing.submitted_ns = stream.timing.first_commit_ns = stream.timing.accepted_ns
        stream.timing.first_frame_ns = stream.timing.accepted_ns
        speak(stream)

    front.broker.on_open = speak_as_if_timed
    call = front.resume(REQUEST)
    assert len([frame async for frame in call]) == 3
    assert "server-timing" not in keys(await call.trailing_metadata())
    counters = front.metrics.model("test")
    assert sum(counters.first_token_s.counts) == 0
    assert sum(counters.inter_token_s.counts) == 1, "between its own two frames"
    assert (counters.frames, counters.delivered_bytes) == (2, 9)
    assert front.codes() == {"OK": 1}
    (stream,) = front.broker.streams
    assert stream.timing.first_frame_ns == stream.timing.accepted_ns, "the first call's, untouched"


@pytest.mark.parametrize("text", ["", "0", "1"])
async def test_resumable_reaches_the_broker_and_only_then_the_window_is_told(
    front: Front, text: str
) -> None:
    front.broker.on_open = lambda stream: stream.finish()
    for call in (
        front.stream(metadata=(("x-resumable", text),)),
        front.message(metadata=(("x-resumable", text),)),
    ):
        initial = keys(await call.initial_metadata())
        assert [frame async for frame in call]
        assert front.broker.streams[-1].labels.resumable is (text == "1")
        assert initial.get("rrpa-resume-window") == ("10" if text == "1" else None)


@pytest.mark.parametrize("error", ALL_ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("method", [RESUME, RESUME_MESSAGE])
async def test_a_refused_resume_has_the_errors_code_and_no_offset(
    front: Front, error: errors.RRPAError, method: str
) -> None:
    front.broker.refusal = error
    call = front.resume(REQUEST, method)
    assert [frame async for frame in no_error(call)] == []
    code, text = status_of(error)
    assert (await call.code(), await call.details()) == (GRPC_CODES[code], text)
    assert "rrpa-offset" not in keys(await call.trailing_metadata())


@pytest.mark.parametrize("method", [RESUME, RESUME_MESSAGE, CANCEL])
async def test_bytes_that_are_no_request_are_invalid_argument(front: Front, method: str) -> None:
    call = front.resume(b"\x0a\x05x", method)
    assert not b"".join([frame async for frame in no_error(call)])
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "is not a rrpa.v1." in await call.details()
    assert front.broker.streams == []


async def test_a_resumed_call_that_is_ended_says_the_whole_offset(front: Front) -> None:
    call = front.resume(REQUEST, metadata=(("x-resumable", "1"),))
    stream = await opened(front)
    stream.data(b"part")
    assert await call.read()
    assert front.handlers.open_calls == 1
    front.handlers.end_all(stopped)
    assert await call.code() is grpc.StatusCode.UNAVAILABLE
    assert await call.details() == "stopped after 11 True"
    assert stream.left == 1
    assert front.handlers.open_calls == 0


async def test_a_resumed_call_that_its_client_leaves_is_left_at_once(front: Front) -> None:
    call = front.resume(REQUEST)
    stream = await opened(front)
    stream.data(b"x")
    assert await call.read()
    call.cancel()
    await until(lambda: stream.left, timeout_s=0.5)
    await until(lambda: front.codes() == {"CANCELLED": 1})


async def test_cancel_reaches_the_broker_and_is_answered_plainly(front: Front) -> None:
    front.broker.on_open = lambda stream: stream.finish()
    assert [frame async for frame in front.stream()]
    known = front.broker.streams[0].stream_id
    cancel = front.channel.unary_unary(CANCEL)
    answer = await cancel(pb.CancelStreamRequest(stream_id=known).SerializeToString())
    assert pb.CancelStreamResponse.FromString(answer) == pb.CancelStreamResponse()
    assert front.broker.cancelled == [known]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await cancel(pb.CancelStreamRequest(stream_id="0" * 32).SerializeToString())
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert front.codes() == {"OK": 1}, "it is no stream"
