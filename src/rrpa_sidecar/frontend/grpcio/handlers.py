"""RRPAService over grpc.aio: one coroutine for each call, fed by the stream's waker.

Handlers are coroutines that write, not generators: a generator's clean-up is left to the garbage
collector when its call is cancelled, and a stream's slot would stay taken until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

from rrpa_sidecar.clock import Clock
from rrpa_sidecar.control.broker import Broker, Reading
from rrpa_sidecar.errors import StreamCancelled
from rrpa_sidecar.frontend.answering import Opening, cancel_stream, list_models, resume, told
from rrpa_sidecar.frontend.call import Call, Ending
from rrpa_sidecar.frontend.frames import BodyFrames, Frames, StreamFrames
from rrpa_sidecar.frontend.metadata import PLAIN_HTTP, read_labels
from rrpa_sidecar.metrics import Metrics
from rrpa_sidecar.status import Code
from rrpa_sidecar.stream.events import Data, Failed

GRPC_CODES = {Code(code.value[0]): code for code in grpc.StatusCode}

Context = grpc.aio.ServicerContext[Any, Any]


FLUSH_S = 0.01
"""Time for gRPC's core to put the last bytes of a stream on the wire; it offers no flush."""

INTERRUPTED = "the sidecar's own fault"
"""At most 23 bytes, and no trailers with it: gRPC (1.85) never frees what it could not send, and
the caller is gone almost always. So short a text has no memory of its own."""


class RRPAHandlers:
    """All methods. Request and response are bytes: nothing is parsed that need not be."""

    def __init__(
        self, broker: Broker, metrics: Metrics, clock: Clock, resume_window_s: float
    ) -> None:
        self._broker = broker
        self._resume = partial(resume, broker)
        self._metrics = metrics
        self._clock = clock
        self._resume_window_s = resume_window_s
        self._open: dict[Call, _News] = {}
        self.arrived = 0
        """Calls so far, of any kind."""

    @property
    def open_calls(self) -> int:
        """Streaming calls that have not ended."""
        return len(self._open)

    def end_all(self, ending: Ending) -> None:
        """End every open call with `ending`, as soon as its connection takes the status."""
        for news in list(self._open.values()):
            news.end(ending)

    async def create_stream(self, request: bytes, context: Context) -> None:
        """Serve CreateStream."""
        await self._stream(request, context, StreamFrames(), self._broker.open)

    async def create_message(self, request: bytes, context: Context) -> None:
        """Serve CreateMessage."""
        await self._stream(request, context, _bodies(context), self._broker.open)

    async def resume_stream(self, request: bytes, context: Context) -> None:
        """Serve ResumeStream."""
        await self._stream(request, context, StreamFrames(), self._resume)

    async def resume_message(self, request: bytes, context: Context) -> None:
        """Serve ResumeMessage."""
        await self._stream(request, context, _bodies(context), self._resume)

    async def cancel_stream(self, request: bytes, context: Context) -> bytes:
        """Serve CancelStream."""
        return self._answer(cancel_stream, request, context)

    async def list_models(self, request: bytes, context: Context) -> bytes:
        """Serve ListModels."""
        return self._answer(list_models, request, context)

    def _answer(
        self, serve: Callable[[Broker, bytes], bytes], request: bytes, context: Context
    ) -> bytes:
        """Serve a method whose answer is one message."""
        self.arrived += 1
        try:
            return serve(self._broker, request)
        except Exception as error:  # noqa: BLE001 - all of them become a status
            set_status(context, error)
            return b""

    async def _stream(
        self, request: bytes, context: Context, frames: Frames, opening: Opening
    ) -> None:
        self.arrived += 1
        call = Call(self._metrics, self._clock, self._resume_window_s)
        deadline_ns = self._deadline_ns(context)
        try:
            error = await self._forward(call, request, context, frames, opening)
        except asyncio.CancelledError:
            # The client left, its deadline passed, or (a fault of ours) somebody cancelled this
            # task. gRPC sends no status for the last, and the client would wait for ever; so all
            # three return with one, which goes nowhere when the client is gone.
            late = deadline_ns is not None and self._clock.now_ns() >= deadline_ns
            call.ended(Code.DEADLINE_EXCEEDED if late else Code.CANCELLED)
            _uncancel()
            context.set_code(grpc.StatusCode.INTERNAL)
            context.set_details(INTERRUPTED)
            return
        code, text = set_status(context, error, call) if error else (Code.OK, "")
        call.ended(code, text)
        context.set_trailing_metadata(call.trailers())

    async def _forward(
        self, call: Call, request: bytes, context: Context, frames: Frames, opening: Opening
    ) -> Exception | None:
        """Open the stream, forward it to its end, leave it. Return what went wrong, if anything.

        The stream is left before this returns or raises, whatever happens.
        """
        try:
            call.labels = read_labels(context.invocation_metadata() or ())
            stream = opening(request, call.labels, context.time_remaining())
        except Exception as error:  # noqa: BLE001 - all of them become a status
            return error
        # Before the first await: a drain that begins during it has to know of this call.
        news = self._open[call] = _News()
        stream.waker = news.set
        try:
            await context.send_initial_metadata(call.accepted(stream))
            failure = await self._pump(call, stream, context, frames, news)
            if failure is not None and (last := frames.broken()) is not None:
                # In one HTTP/2 frame with the last bytes it would take them along.
                await asyncio.sleep(FLUSH_S)
                await context.write(last)
            return failure
        except grpc.aio.BaseError:  # a write after the connection broke, before we were told
            return StreamCancelled("the caller's connection is gone")
        except Exception as error:  # noqa: BLE001 - all of them become a status
            return error
        finally:
            self._open.pop(call, None)
            stream.waker = None
            stream.leave()

    async def _pump(
        self, call: Call, stream: Reading, context: Context, frames: Frames, news: _News
    ) -> Exception | None:
        while news.ending is None:
            news.clear()  # before the poll: what comes after it sets the event again
            event = stream.poll()
            if event is None:
                await news.wait()
            elif isinstance(event, Data):
                await context.write(frames.data(event))
                call.wrote(len(event.data))
            elif isinstance(event, Failed):
                return event.error
            elif (cut := frames.cut(event)) is not None:
                return cut
            else:
                call.finished(event)
                last = frames.finish(event)
                if last is not None:
                    await context.write(last)
                return None
        return news.ending(call.offset, stream.resumable)

    def _deadline_ns(self, context: Context) -> int | None:
        left_s = context.time_remaining()
        return None if left_s is None else self._clock.now_ns() + int(left_s * 1e9)


class _News(asyncio.Event):
    """Set when a call has something to do: its stream moved, or `ending` has to end it."""

    def __init__(self) -> None:
        super().__init__()
        self.ending: Ending | None = None

    def end(self, ending: Ending) -> None:
        self.ending = ending
        self.set()


def _bodies(context: Context) -> BodyFrames:
    return BodyFrames(plain_http=(PLAIN_HTTP, "1") in (context.invocation_metadata() or ()))


def set_status(context: Context, error: Exception, call: Call | None = None) -> tuple[Code, str]:
    """Choose the call's status for `error`."""
    code, text = told(error, call.labels if call else None)
    context.set_code(GRPC_CODES[code])
    context.set_details(text)
    return code, text


def _uncancel() -> None:
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()
