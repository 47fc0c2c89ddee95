"""From a request to where its answer comes from: the methods' table of this front end. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from rrpa_sidecar.clock import Clock
from rrpa_sidecar.control.broker import Broker
from rrpa_sidecar.frontend import methods
from rrpa_sidecar.frontend.answering import Opening, cancel_stream, list_models, resume, told
from rrpa_sidecar.frontend.batched.answer import Answer, End
from rrpa_sidecar.frontend.batched.answers import OneAnswer, WatchAnswer
from rrpa_sidecar.frontend.batched.headers import Head
from rrpa_sidecar.frontend.batched.heads import Head as FrameHead
from rrpa_sidecar.frontend.batched.heads import body_head, stream_head
from rrpa_sidecar.frontend.batched.stream_answer import StreamAnswer
from rrpa_sidecar.frontend.call import Call
from rrpa_sidecar.frontend.frames import BodyFrames, Frames, StreamFrames
from rrpa_sidecar.frontend.health import Health, Watch
from rrpa_sidecar.frontend.metadata import PLAIN_HTTP, Pairs, read_labels
from rrpa_sidecar.metrics import Metrics

Waker = Callable[[], None]


class Accepted(NamedTuple):
    """A call that is being answered."""

    answer: Answer
    metadata: Pairs


class Service:
    """All methods, for all connections."""

    def __init__(
        self,
        broker: Broker,
        metrics: Metrics,
        clock: Clock,
        health: Health,
        resume_window_s: float,
    ) -> None:
        self._broker = broker
        self._resume = partial(resume, broker)
        self._metrics = metrics
        self._clock = clock
        self._health = health
        self._resume_window_s = resume_window_s
        self._begin: dict[str, Callable[[Head, bytes, float | None, Waker], Accepted | End]] = {
            methods.CREATE_STREAM: self._create_stream,
            methods.CREATE_MESSAGE: self._create_message,
            methods.RESUME_STREAM: self._resume_stream,
            methods.RESUME_MESSAGE: self._resume_message,
            methods.CANCEL_STREAM: self._cancel_stream,
            methods.LIST_MODELS: self._list_models,
            methods.CHECK: self._check,
            methods.WATCH: self._watch,
        }

    def serves(self, path: str) -> bool:
        """Whether `path` names a method that takes one request."""
        return path in self._begin

    def begin(
        self, head: Head, request: bytes, timeout_s: float | None, waker: Waker
    ) -> Accepted | End:
        """Serve a call whose request is whole. Never raises.

        timeout_s: how long the caller still waits.
        waker: called, in the loop's thread, when the answer may have something new.
        """
        try:
            return self._begin[head.path](head, request, timeout_s, waker)
        except Exception as error:  # noqa: BLE001 - all of them become a status
            return End(*told(error))

    def _create_stream(
        self, head: Head, request: bytes, timeout_s: float | None, waker: Waker
    ) -> Accepted | End:
        frames = StreamFrames()
        return self._stream(head, request, timeout_s, waker, frames, stream_head, self._broker.open)

    def _create_message(
        self, head: Head, request: bytes, timeout_s: float | None, waker: Waker
    ) -> Accepted | End:
        frames = _bodies(head)
        return self._stream(head, request, timeout_s, waker, frames, body_head, self._broker.open)

    def _resume_stream(
        self, head: Head, request: bytes, timeout_s: float | None, waker: Waker
    ) -> Accepted | End:
        frames = StreamFrames()
        return self._stream(head, request, timeout_s, waker, frames, stream_head, self._resume)

    def _resume_message(
        self, head: Head, request: bytes, timeout_s: float | None, waker: Waker
    ) -> Accepted | End:
        frames = _bodies(head)
        return self._stream(head, request, timeout_s, waker, frames, body_head, self._resume)

    def _stream(
        self,
        head: Head,
        request: bytes,
        timeout_s: float | None,
        waker: Waker,
        frames: Frames,
        frame_head: FrameHead,
        opening: Opening,
    ) -> Accepted | End:
        call = Call(self._metrics, self._clock, self._resume_window_s)
        try:
            call.labels = read_labels(head.metadata)
            stream = opening(request, call.labels, timeout_s)
        except Exception as error:  # noqa: BLE001 - all of them become a status
            code, text = told(error, call.labels)
            call.ended(code, text)
            return End(code, text, call.trailers())
        stream.waker = waker
        return Accepted(StreamAnswer(call, stream, frames, frame_head), call.accepted(stream))

    def _cancel_stream(
        self, head: Head, request: bytes, timeout_s: float | None, waker: Waker
    ) -> Accepted:
        return Accepted(OneAnswer(cancel_stream(self._broker, request)), ())

    def _list_models(
        self, head: Head, request: bytes, timeout_s: float | None, waker: Waker
    ) -> Accepted:
        return Accepted(OneAnswer(list_models(self._broker, request)), ())

    def _check(self, head: Head, request: bytes, timeout_s: float | None, waker: Waker) -> Accepted:
        return Accepted(OneAnswer(self._health.check(request)), ())

    def _watch(self, head: Head, request: bytes, timeout_s: float | None, waker: Waker) -> Accepted:
        watch = Watch(self._health, request)
        return Accepted(WatchAnswer(self._health, watch, waker), ())


def _bodies(head: Head) -> BodyFrames:
    return BodyFrames(plain_http=(PLAIN_HTTP, "1") in head.metadata)
