"""One HTTP/2 connection: what arrives becomes calls, what moves leaves in one write.

A waker marks its answer and asks for one flush; the loop runs it after the scan that woke all the
others too, so an engine's step is one write for each connection, whatever the number of streams.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from h2 import events
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from rrpa_sidecar.errors import CapacityExhausted, DeadlinePassed, RRPAError
from rrpa_sidecar.frontend import methods
from rrpa_sidecar.frontend.answering import told
from rrpa_sidecar.frontend.batched import headers, wire
from rrpa_sidecar.frontend.batched.answers import End, ReflectionAnswer, StreamAnswer
from rrpa_sidecar.frontend.batched.budget import Budget
from rrpa_sidecar.frontend.batched.calls import Accepted
from rrpa_sidecar.frontend.batched.messages import RequestReader
from rrpa_sidecar.frontend.batched.sender import Outgoing, Sender
from rrpa_sidecar.frontend.batched.state import FRAME_BYTES, State
from rrpa_sidecar.status import Code, one_line

if TYPE_CHECKING:
    from rrpa_sidecar.frontend.batched.server import BatchedServer

log = logging.getLogger(__name__)

HIGH_WATER_BYTES = 256 * 1024
"""Above it no answer is asked for more: its bytes are better kept in the log."""

DEAF_BYTES = 1024 * 1024
"""Above it nothing is read any more, so that a peer that makes us answer and never reads stops."""

GREETING_S = 10.0
"""A peer that connects and speaks no HTTP/2 is dropped."""

KEEPALIVE_S, KEEPALIVE_TIMEOUT_S = 20.0, 10.0
"""As the grpcio front end: a caller that vanished is noticed after both."""

BROKEN_S = 0.01
"""Time for the last bytes of an answer to get through a proxy before its stream is reset."""

CLOSE_S = 1.0
"""How long the last bytes of a connection that we end may take."""

LATE_S = 0.01
"""A caller that resets this close to its deadline did so for it: its clock starts before ours, and
what it tells us is rounded up."""

LONGEST_TIMER_S = 10 * 86400.0


class Call:
    """A call from its headers to its end."""

    __slots__ = ("due_s", "head", "out", "reader", "request_ended", "stream_id", "timer")

    def __init__(self, stream_id: int, head: headers.Head, reader: RequestReader) -> None:
        self.stream_id = stream_id
        self.head = head
        self.reader: RequestReader | None = reader
        self.request_ended = False
        self.due_s: float | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.out: Outgoing | None = None


class Connection(asyncio.Protocol):
    """The server's side of one connection."""

    def __init__(self, server: BatchedServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._h2 = State(server.streams_limit)
        self._sender = Sender(self._h2, self._ended)
        self._budget = Budget(server.streams_limit, self._loop.time())
        self._guard = wire.LengthGuard(FRAME_BYTES)
        self._calls: dict[int, Call] = {}
        self._transport: asyncio.Transport | None = None
        self._flushing = False
        self._paused = False
        self._greeted = False
        self._heard = True
        self._draining = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._handlers: dict[type[events.Event], Callable[..., None]] = {
            events.RequestReceived: self._request,
            events.DataReceived: self._data,
            events.StreamEnded: self._request_end,
            events.StreamReset: self._reset,
            events.WindowUpdated: self._window,
            events.RemoteSettingsChanged: self._settings,
            events.PingReceived: self._noise,
            events.PriorityUpdated: self._noise,
            events.UnknownFrameReceived: self._noise,
        }

    # --- asyncio's side -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(HIGH_WATER_BYTES)
        self._server.connections.add(self)
        self._timer = self._loop.call_later(GREETING_S, self._check_greeting)
        self.flush_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        self._shut()
        self._transport = None
        self._server.connections.discard(self)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._transport is not None and not self._closed:
            self._transport.resume_reading()
            self.flush_soon()

    def data_received(self, data: bytes) -> None:
        if self._closed:
            return
        self._heard = True
        try:
            for event in self._h2.receive_data(data):
                handle = self._handlers.get(type(event))
                if handle is not None:
                    handle(event)
                    if self._closed:
                        return
        except ProtocolError as error:
            log.info("connection ended: %s", one_line(f"{type(error).__name__} {error}"))
            self._close()
        except Exception:
            # A fault of h2's or ours that a peer has found; it costs its own connection only.
            log.exception("connection ended by a fault")
            self._end_connection(ErrorCodes.INTERNAL_ERROR)
        else:
            frames = self._guard.frames
            if self._guard.is_too_long(data):
                self._end_connection(ErrorCodes.FRAME_SIZE_ERROR)
            elif not self._budget.frames.spend(self._loop.time(), self._guard.frames - frames):
                self._too_much("frames")
            self.flush_soon()

    # --- For the server -------------------------------------------------------------------

    @property
    def open_calls(self) -> int:
        """Streaming calls that are being answered."""
        return len(self._streaming())

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to be said."""
        waiting = self._transport is not None and self._transport.get_write_buffer_size() > 0
        return not self._calls and not waiting and not self._flushing

    def end_all(self, error: RRPAError) -> None:
        """End every call with `error`; one that is half-way through a message finishes that."""
        for out in self._streaming():
            self._sender.finish(out, error)
        self.flush_soon()

    def _streaming(self) -> list[Outgoing]:
        outs = [call.out for call in self._calls.values() if call.out is not None]
        return [out for out in outs if isinstance(out.answer, StreamAnswer)]

    def drain(self) -> None:
        """Say that no new calls are taken here; those that are open go on."""
        if self._closed or self._draining or self._transport is None:
            return
        self._draining = True
        self._flush()
        self._transport.write(wire.goaway(self._h2.highest_inbound_stream_id))

    def close(self) -> None:
        """End the connection and whatever is open on it."""
        if self._transport is not None and not self._closed:
            self._flush()
            self._close()

    # --- What arrives ---------------------------------------------------------------------

    def _request(self, event: events.RequestReceived) -> None:
        stream_id = event.stream_id
        if not self._is_open(stream_id):
            return
        if self._draining or len(self._calls) >= self._server.streams_limit:
            self._h2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)
            self._h2.forget(stream_id)
            return
        head = headers.read(event.headers)
        reflects = head.path == methods.REFLECT
        call = Call(stream_id, head, RequestReader(self._server.request_limit, single=not reflects))
        self._calls[stream_id] = call
        try:
            if head.http_status:
                self._answer_http(call, head.http_status)
                return
            refusal = self._refusal(head)
            if refusal is not None:
                self._finish(call, refusal)
                return
            timeout_s = head.timeout_s()
            if timeout_s is not None:
                call.due_s = self._loop.time() + timeout_s
                if timeout_s < LONGEST_TIMER_S:
                    call.timer = self._loop.call_later(timeout_s, self._late, call)
            if reflects:
                self._accept(
                    call,
                    Outgoing(stream_id, self._h2.streams[stream_id]),
                    Accepted(ReflectionAnswer(), ()),
                )
        except RRPAError as error:
            self._finish(call, End(*told(error)))

    def _refusal(self, head: headers.Head) -> End | None:
        """Return why a call is not even read."""
        if head.path != methods.REFLECT and not self._server.service.serves(head.path):
            return End(Code.UNIMPLEMENTED, "this sidecar has no such method; check the path")
        if head.encoding != "identity":
            return End(
                Code.UNIMPLEMENTED,
                f"requests compressed with {head.encoding[:20]!a} are not taken; send identity",
            )
        head.check_size()
        return None

    def _data(self, event: events.DataReceived) -> None:
        if not event.data and not event.stream_ended:
            self._noise(event)
        self._give_back(event)
        call = self._calls.get(event.stream_id)
        if call is None or call.reader is None:  # its stream is over here
            return
        try:
            self._take(call.reader, event.data)
            if call.out is not None and isinstance(call.out.answer, ReflectionAnswer):
                self._ask(call.reader, call.out.answer)
                self._sender.mark(call.out)
        except RRPAError as error:
            self._finish(call, End(*told(error)))

    def _take(self, reader: RequestReader, data: bytes) -> None:
        server, before = self._server, reader.held_bytes
        try:
            reader.feed(data)
        finally:
            server.held_bytes += reader.held_bytes - before
        if server.held_bytes > server.held_limit:
            raise CapacityExhausted(
                f"requests that are still arriving have more than {server.held_limit} bytes"
                " (--queue-bytes and --max-request-bytes); try later"
            )

    def _ask(self, reader: RequestReader, answer: ReflectionAnswer) -> None:
        before = reader.held_bytes
        try:
            while (request := reader.take()) is not None:
                answer.ask(request)
        finally:
            self._server.held_bytes += reader.held_bytes - before

    def _give_back(self, event: events.DataReceived) -> None:
        """Return the window that the frame used up."""
        if event.flow_controlled_length:
            try:
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            except ProtocolError:  # the stream was reset meanwhile
                log.debug("no window to give back on stream %d", event.stream_id)

    def _request_end(self, event: events.StreamEnded) -> None:
        call = self._calls.get(event.stream_id)
        if call is None:
            self._h2.forget(event.stream_id)
            return
        call.request_ended = True
        if call.reader is None:
            return
        if call.out is not None and isinstance(call.out.answer, ReflectionAnswer):
            call.out.answer.close()
            self._sender.mark(call.out)
            return
        try:
            request = call.reader.message()
        except RRPAError as error:
            self._finish(call, End(*told(error)))
            return
        self._let_go(call)
        self._begin(call, request)

    def _begin(self, call: Call, request: bytes) -> None:
        stream_id = call.stream_id
        if not self._is_open(stream_id):
            self._remove(call)
            return
        left_s = None if call.due_s is None else call.due_s - self._loop.time()
        out = Outgoing(stream_id, self._h2.streams[stream_id])

        def waker() -> None:
            self._sender.mark(out)
            self.flush_soon()

        begun = self._server.service.begin(call.head, request, left_s, waker)
        if isinstance(begun, End):
            self._finish(call, begun)
            return
        self._accept(call, out, begun)

    def _accept(self, call: Call, out: Outgoing, accepted: Accepted) -> None:
        """Say that the call is taken; its answer follows."""
        out.answer = accepted.answer
        call.out = out
        self._h2.send_headers(call.stream_id, headers.response(accepted.metadata))
        self._sender.mark(out)

    def _is_open(self, stream_id: int) -> bool:
        """Whether something can be sent: h2 has read on, and may know of a reset to come."""
        stream = self._h2.streams.get(stream_id)
        return stream is not None and not stream.closed

    def _reset(self, event: events.StreamReset) -> None:
        # h2 reports resets of its own as well; those are answers to what the peer did.
        if not self._budget.resets.spend(self._loop.time()):
            self._too_much("resets")
            return
        call = self._calls.get(event.stream_id)
        if call is not None:
            late = call.due_s is not None and self._loop.time() >= call.due_s - LATE_S
            self._drop(call, Code.DEADLINE_EXCEEDED if late else Code.CANCELLED)
        self._h2.forget(event.stream_id)

    def _window(self, event: events.WindowUpdated) -> None:
        if not self._budget.updates.spend(self._loop.time()):
            self._too_much("window updates")
            return
        call = self._calls.get(event.stream_id or 0)
        if call is not None and call.out is not None:
            self._sender.mark(call.out)

    def _settings(self, event: events.RemoteSettingsChanged) -> None:
        self._greeted = True
        if SettingCodes.INITIAL_WINDOW_SIZE in event.changed_settings:
            for call in self._calls.values():
                if call.out is not None:
                    self._sender.mark(call.out)
        self._noise(event)

    def _noise(self, event: events.Event) -> None:
        if not self._budget.noise.spend(self._loop.time()):
            self._too_much(type(event).__name__)

    def _too_much(self, what: str) -> None:
        log.warning("connection ended: too many %s", what)
        self._end_connection(ErrorCodes.ENHANCE_YOUR_CALM)

    # --- What leaves ----------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Have one flush run in the loop's next turn."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        transport = self._transport
        if transport is None or self._closed:
            return
        frames = self._sender.frames
        try:
            raw = self._h2.data_to_send() if self._paused else b"".join(self._sender.batch())
        except Exception:
            log.exception("connection ended by a fault")
            self._end_connection(ErrorCodes.INTERNAL_ERROR)
            return
        self._budget.sent(self._sender.frames - frames)
        if raw:
            transport.write(raw)
        if self._paused and transport.get_write_buffer_size() > DEAF_BYTES:
            transport.pause_reading()
        elif self._sender.has_work and not self._paused:
            self.flush_soon()

    def _ended(self, out: Outgoing, end: End) -> None:
        call = self._calls.get(out.stream_id)
        if call is not None:
            self._finish(call, end)

    def _finish(self, call: Call, end: End) -> None:
        """Send the end of a call, and forget the call."""
        stream_id = call.stream_id
        if not self._is_open(stream_id):
            self._remove(call)
        elif end.broken and call.out is not None:
            # In one read with the last bytes, a reset would take them along in a proxy.
            call.out.gone = True
            self._loop.call_later(BROKEN_S, self._break, call)
        else:
            trailers = headers.trailers(end.code, end.text, end.metadata, alone=call.out is None)
            self._h2.send_headers(stream_id, trailers, end_stream=True)
            self._stop_request(call)
            self._remove(call)

    def _break(self, call: Call) -> None:
        """Reset the stream of a caller that sees no trailers."""
        if self._calls.get(call.stream_id) is call and self._is_open(call.stream_id):
            self._h2.reset_stream(call.stream_id, ErrorCodes.INTERNAL_ERROR)
            self._remove(call)
            self.flush_soon()

    def _answer_http(self, call: Call, status: int) -> None:
        """Answer what is no gRPC call as plain HTTP."""
        self._h2.send_headers(call.stream_id, [(b":status", b"%d" % status)], end_stream=True)
        self._stop_request(call)
        self._remove(call)

    def _stop_request(self, call: Call) -> None:
        """Tell the peer that nobody reads the rest of its request."""
        if not call.request_ended and not self._h2.streams[call.stream_id].closed:
            self._h2.reset_stream(call.stream_id, ErrorCodes.NO_ERROR)

    def _late(self, call: Call) -> None:
        error = DeadlinePassed("the deadline passed before the answer was complete")
        call.timer = None
        if call.out is None:
            self._finish(call, End(*told(error)))
        elif not self._sender.finish(call.out, error):
            # Half a message is out, and its rest may never find a window.
            self._drop(call, Code.DEADLINE_EXCEEDED)
            if self._is_open(call.stream_id):
                self._h2.reset_stream(call.stream_id, ErrorCodes.CANCEL)
                self._h2.forget(call.stream_id)
        self.flush_soon()

    # --- Ends -----------------------------------------------------------------------------

    def _drop(self, call: Call, code: Code) -> None:
        """Leave a call that nobody waits for any more."""
        if call.out is not None:
            call.out.answer.leave(code)
        self._remove(call)

    def _remove(self, call: Call) -> None:
        self._calls.pop(call.stream_id, None)
        self._let_go(call)
        if call.timer is not None:
            call.timer.cancel()
        if call.out is not None:
            call.out.gone = True
            call.out.rest = b""
        self._h2.forget(call.stream_id)

    def _let_go(self, call: Call) -> None:
        """Give up what has arrived of a request."""
        if call.reader is not None:
            self._server.held_bytes -= call.reader.held_bytes
            call.reader = None

    def _end_connection(self, code: ErrorCodes) -> None:
        """Close with a GOAWAY that says why."""
        try:
            self._h2.close_connection(code)
        except ProtocolError:
            log.debug("the connection was closed already")
        self._close()

    def _close(self) -> None:
        """Send what h2 has to say, and close; leave all calls at once."""
        transport = self._transport
        if transport is None or self._closed:
            return
        self._shut()
        transport.write(self._h2.data_to_send())
        transport.close()
        self._timer = self._loop.call_later(CLOSE_S, transport.abort)

    def _shut(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for call in list(self._calls.values()):
            self._drop(call, Code.CANCELLED)

    def _check_greeting(self) -> None:
        if not self._greeted:
            self._end_connection(ErrorCodes.PROTOCOL_ERROR)
            return
        self._heard = False
        self._timer = self._loop.call_later(KEEPALIVE_S - GREETING_S, self._check_alive)

    def _check_alive(self) -> None:
        if self._heard:
            self._heard = False
            self._timer = self._loop.call_later(KEEPALIVE_S, self._check_alive)
            return
        self._h2.ping(b"keepaliv")
        self.flush_soon()
        self._timer = self._loop.call_later(KEEPALIVE_TIMEOUT_S, self._check_answer)

    def _check_answer(self) -> None:
        if self._heard:
            self._check_alive()
        elif self._transport is not None:
            self._transport.abort()
