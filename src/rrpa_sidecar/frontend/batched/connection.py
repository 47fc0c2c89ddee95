"""One HTTP/2 connection: what arrives becomes calls, what moves leaves in one write.

The broker's scan opens a step, appends the tokens that go the short way, and ends it: an engine's
step is one write for each connection, whatever the number of streams. What the scan only wakes
(first tokens, ends, answers without window) marks its answer and asks for one flush, which the
step's own write takes along.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

from rrpa_sidecar.frontend.batched import headers, wire
from rrpa_sidecar.frontend.batched.answer import End
from rrpa_sidecar.frontend.batched.answers import ReflectionAnswer
from rrpa_sidecar.frontend.batched.arrivals import Arrivals
from rrpa_sidecar.frontend.batched.budget import Budget
from rrpa_sidecar.frontend.batched.calls import Accepted
from rrpa_sidecar.frontend.batched.gate import Breach, Gate
from rrpa_sidecar.frontend.batched.intake import Intake
from rrpa_sidecar.frontend.batched.liveness import Liveness
from rrpa_sidecar.frontend.batched.open_calls import Call, OpenCalls
from rrpa_sidecar.frontend.batched.outgoing import Outgoing
from rrpa_sidecar.frontend.batched.sender import BATCH_BYTES
from rrpa_sidecar.frontend.batched.state import State
from rrpa_sidecar.frontend.call import Ending
from rrpa_sidecar.status import one_line

if TYPE_CHECKING:
    from rrpa_sidecar.frontend.batched.server import BatchedServer

log = logging.getLogger(__name__)

HIGH_WATER_BYTES = 64 * 1024
"""Above it no answer is asked for more: its bytes are better kept in the log. With the batch that
may be on top, it is what stands before the next token, beside the kernel's 208 KiB: 124 KiB at
most, in place of 508 with 256 KiB, beside 16 streams of bulk through Envoy."""

DEAF_BYTES = 512 * 1024
"""Above it nothing is read any more, so that a peer that makes us answer and never reads stops."""

IGNORED_LIMIT_BYTES = 4 * 1024 * 1024
"""A peer that sends more after its end does not read why."""

CLOSE_S = 5.0
"""How long the last bytes of a connection that we end may take: a peer in the middle of a flood
reads them only when it has sent it."""


class Connection(asyncio.Protocol):
    """The server's side of one connection."""

    def __init__(self, server: BatchedServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._h2 = State(server.streams_limit)
        self._calls = OpenCalls(self._h2, server.held, self._loop, self.flush_soon)
        self._sender = self._calls.sender
        self._budget = Budget(server.streams_limit, self._loop.time())
        self._intake = Intake(Gate(self._budget, self._calls.__len__))
        self._arrivals = Arrivals(
            self, self._h2, self._calls, self._budget, server.held, self._loop
        )
        self._transport: asyncio.Transport | None = None
        self._liveness: Liveness | None = None
        self._aborting: asyncio.TimerHandle | None = None
        self._flushing = False
        self._paused = False
        self._turning = False
        self._held_up = False
        self._closed = False
        self._ignored_bytes = 0
        self.draining = False
        self.request_limit = server.request_limit
        self.streams_limit = server.streams_limit
        self.serves = server.service.serves

    # --- asyncio's side -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(HIGH_WATER_BYTES)
        self._server.connections.add(self)
        self._liveness = Liveness(self._loop, self)
        self.flush_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        self._shut()
        if self._aborting is not None:
            self._aborting.cancel()
        self._transport = None
        self._server.connections.discard(self)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._transport is not None and not self._closed:
            self.flush_soon()
            self._read_on()

    def data_received(self, data: bytes) -> None:
        if self._closed:
            self._ignore(len(data))
            return
        assert self._liveness is not None
        self._liveness.heard()
        self._intake.add(data)
        if self._turning:
            return
        if self._server.turns.free(self._loop):
            self._turn()
        else:
            self._read_on()

    def _turn(self) -> None:
        """Act on what has arrived, as much of it as others can wait for."""
        self._turning = False
        if self._closed or self._is_deaf:
            return
        try:
            for event in self._h2.receive_data(self._intake.turn(self._loop.time())):
                self._arrivals.take(event)
                if self._closed:
                    return
        except ProtocolError as error:
            log.info("connection ended: %s", one_line(f"{type(error).__name__} {error}"))
            self._close()
        except Breach as error:
            log.warning("connection ended: %s", error)
            self._end_connection(error.code)
        except Exception:
            # A fault of h2's or ours that a peer has found; it costs its own connection only.
            log.exception("connection ended by a fault")
            self._end_connection(ErrorCodes.INTERNAL_ERROR)
        else:
            self.flush_soon()
            if self._intake.waits or self._held_up:
                self._read_on()

    def _read_on(self) -> None:
        """Go on with what waits; if nothing does, read again."""
        assert self._transport is not None
        self._held_up = self._intake.waits
        if not self._held_up:
            self._transport.resume_reading()
            return
        self._transport.pause_reading()
        if not self._turning:
            self._turning = True
            self._server.turns.ask(self._loop, self._turn)

    def _ignore(self, count: int) -> None:
        """Pass over what arrives after the end, so that the peer gets to read why."""
        self._ignored_bytes += count
        if self._ignored_bytes > IGNORED_LIMIT_BYTES and self._transport is not None:
            self._transport.abort()

    @property
    def _is_deaf(self) -> bool:
        """Whether so much is to be sent that nothing is read before some of it is."""
        transport = self._transport
        return (
            self._paused
            and transport is not None
            and transport.get_write_buffer_size() > DEAF_BYTES
        )

    # --- For the server -------------------------------------------------------------------

    @property
    def open_calls(self) -> int:
        """Streaming calls that are being answered."""
        return len(self._calls.streaming())

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to be said."""
        waiting = self._transport is not None and self._transport.get_write_buffer_size() > 0
        busy = waiting or self._flushing or self._intake.waits
        return not self._calls and not busy

    def end_all(self, ending: Ending) -> None:
        """End every call with `ending`; one that is half-way through a message finishes that."""
        self._calls.end_all(ending)
        self.flush_soon()

    def drain(self) -> None:
        """Say that no new calls are taken here; those that are open go on."""
        if self._closed or self.draining or self._transport is None:
            return
        self.draining = True
        self._flush()
        self._transport.write(wire.goaway(self._h2.highest_inbound_stream_id))

    def close(self) -> None:
        """End the connection and whatever is open on it."""
        if self._transport is not None and not self._closed:
            self._flush()
            self._close(linger=False)

    # --- For what arrives -----------------------------------------------------------------

    def begin(self, call: Call, request: bytes) -> None:
        """Serve a call whose request is whole."""
        stream_id = call.stream_id
        if not self._calls.is_open(stream_id):
            self._calls.remove(call)
            return
        left_s = None if call.due_s is None else call.due_s - self._loop.time()
        out = Outgoing(stream_id, self._h2.streams[stream_id], self._sender)

        def waker() -> None:
            self._sender.mark(out)
            self.flush_soon()

        begun = self._server.service.begin(call.head, request, left_s, waker)
        if isinstance(begun, End):
            self._calls.finish(call, begun)
            return
        self._accept(call, out, begun)

    def begin_reflection(self, call: Call) -> None:
        """Serve a call whose requests are answered as they come."""
        out = Outgoing(call.stream_id, self._h2.streams[call.stream_id], self._sender)
        self._accept(call, out, Accepted(ReflectionAnswer(), ()))

    def _accept(self, call: Call, out: Outgoing, accepted: Accepted) -> None:
        """Say that the call is taken; its answer follows."""
        out.answer = accepted.answer
        call.out = out
        self._h2.say(call.stream_id, headers.response(accepted.metadata))
        self._sender.mark(out)

    def greeted(self) -> None:
        """The peer speaks HTTP/2."""
        assert self._liveness is not None
        self._liveness.greeted = True

    # --- For the timer of its peer's life -------------------------------------------------

    def is_mute(self) -> None:
        """End the connection of a peer that speaks no HTTP/2."""
        self._end_connection(ErrorCodes.PROTOCOL_ERROR)

    def look(self) -> None:
        """End what was not read for too long."""
        self._calls.end_unread()

    def ask(self) -> None:
        """Ping."""
        self._h2.ping(b"keepaliv")
        self.flush_soon()

    def is_gone(self) -> None:
        """Leave a peer that answers no ping, or says that it leaves."""
        if self._transport is not None and not self._closed:
            self._shut()
            self._transport.abort()

    # --- What leaves ----------------------------------------------------------------------

    def begin_step(self) -> None:
        """Let the short way add frames, if they can leave now."""
        self._sender.begin_step(0 if self._paused or self._closed else BATCH_BYTES)

    def end_step(self) -> None:
        """Send what it has added, and what else is to be said."""
        if self._sender.has_work:
            self._flush()

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

    # --- Ends -----------------------------------------------------------------------------

    def _end_connection(self, code: ErrorCodes) -> None:
        """Close with a GOAWAY that says why."""
        try:
            self._h2.close_connection(code)
        except ProtocolError:
            log.debug("the connection was closed already")
        self._close()

    def _close(self, *, linger: bool = True) -> None:
        """Send what h2 has to say, and close; leave all calls at once.

        linger: the peer may be sending still. If we closed before reading that, the kernel would
        answer with a reset, which can overtake the GOAWAY that says why.
        """
        transport = self._transport
        if transport is None or self._closed:
            return
        self._shut()
        transport.write(self._h2.data_to_send())
        if linger:
            transport.resume_reading()
            transport.write_eof()
        else:
            transport.close()
        self._aborting = self._loop.call_later(CLOSE_S, transport.abort)

    def _shut(self) -> None:
        self._closed = True
        if self._liveness is not None:
            self._liveness.stop()
        self._calls.drop_all()
