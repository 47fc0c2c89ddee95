"""The calls of one connection, and every way in which one ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, ValuesView

from h2.errors import ErrorCodes

from rrpa_sidecar.errors import CapacityExhausted, DeadlinePassed, RRPAError
from rrpa_sidecar.frontend.answering import told
from rrpa_sidecar.frontend.batched import headers
from rrpa_sidecar.frontend.batched.answer import End
from rrpa_sidecar.frontend.batched.held import Held
from rrpa_sidecar.frontend.batched.messages import RequestReader
from rrpa_sidecar.frontend.batched.outgoing import Outgoing
from rrpa_sidecar.frontend.batched.sender import Sender
from rrpa_sidecar.frontend.batched.state import State
from rrpa_sidecar.frontend.batched.stream_answer import StreamAnswer
from rrpa_sidecar.frontend.call import Ending
from rrpa_sidecar.status import Code

BROKEN_S = 0.01
"""Time for the last bytes of an answer to get through a proxy before its stream is reset."""

LATE_S = 0.01
"""A caller that resets this close to its deadline did so for it: its clock starts before ours, and
what it tells us is rounded up."""

UNREAD_S = 600.0
"""How long an answer may lie unread, its caller alive and its windows shut. gRPC itself sets no
such limit, and pauses are a caller's right; but the stream's shared memory is one of a few, and
whoever forgets to read without a deadline would hold it for ever."""

CALL_BYTES = 2048
"""Memory of a call and its stream, measured, without headers and body."""


class Call:
    """A call from its headers to its end."""

    __slots__ = (
        "begun_s", "due_s", "head", "out", "reader", "request_ended", "shut_s", "stream_id", "timer"
    )  # fmt: skip

    def __init__(
        self, stream_id: int, head: headers.Head, reader: RequestReader, now_s: float
    ) -> None:
        self.stream_id = stream_id
        self.begun_s = now_s
        self.head = head
        self.reader: RequestReader | None = reader
        self.request_ended = False
        self.due_s: float | None = None
        self.shut_s: float | None = None
        """Since when there is something to send and no window, as far as `end_unread` saw."""
        self.timer: asyncio.TimerHandle | None = None
        self.out: Outgoing | None = None


class OpenCalls:
    """Calls by their stream's id. What h2 is told here leaves with the next flush."""

    def __init__(
        self,
        h2: State,
        held: Held,
        loop: asyncio.AbstractEventLoop,
        flush_soon: Callable[[], None],
    ) -> None:
        """flush_soon: called when something has to leave although nothing arrived."""
        self._h2 = h2
        self._held = held
        self._loop = loop
        self._flush_soon = flush_soon
        self._calls: dict[int, Call] = {}
        self._fed_s = 0.0
        self.sender = Sender(h2, self._answered)

    def __len__(self) -> int:
        return len(self._calls)

    def get(self, stream_id: int) -> Call | None:
        """Return the call of a stream, None if it is over."""
        return self._calls.get(stream_id)

    def all(self) -> ValuesView[Call]:
        """Return all that are open."""
        return self._calls.values()

    def streaming(self) -> list[tuple[Outgoing, StreamAnswer]]:
        """Return the answers that are streams, each with its way out."""
        outs = [call.out for call in self._calls.values() if call.out is not None]
        return [(out, out.answer) for out in outs if isinstance(out.answer, StreamAnswer)]

    def is_open(self, stream_id: int) -> bool:
        """Whether something can be sent: h2 has read on, and may know of a reset to come."""
        stream = self._h2.streams.get(stream_id)
        return stream is not None and not stream.closed

    # --- Begin ----------------------------------------------------------------------------

    def add(self, call: Call) -> None:
        """Take a new call."""
        self._calls[call.stream_id] = call
        self._held.change(CALL_BYTES + call.head.size_bytes)

    def limit_time(self, call: Call, timeout_s: float) -> None:
        """End `call` with DEADLINE_EXCEEDED when its caller's time is over."""
        call.due_s = self._loop.time() + timeout_s
        call.timer = self._loop.call_later(timeout_s, self._late, call)

    # --- Ends that we choose --------------------------------------------------------------

    def finish(self, call: Call, end: End) -> None:
        """Send the end of a call, and forget the call."""
        stream_id = call.stream_id
        if not self.is_open(stream_id):
            self.remove(call)
        elif end.broken and call.out is not None:
            # In one read with the last bytes, a reset would take them along in a proxy.
            self.sender.drop(call.out)
            if call.timer is not None:
                call.timer.cancel()
            call.timer = self._loop.call_later(BROKEN_S, self._break, call)
        else:
            trailers = headers.trailers(end.code, end.text, end.metadata, alone=call.out is None)
            self._h2.say(stream_id, trailers, last=True)
            self._stop_request(call)
            self.remove(call)

    def answer_http(self, call: Call, status: int) -> None:
        """Answer what is no gRPC call as plain HTTP."""
        self._h2.say(call.stream_id, headers.http(status), last=True)
        self._stop_request(call)
        self.remove(call)

    def end_all(self, ending: Ending) -> None:
        """End every stream with `ending`; one that is half-way through a message finishes that."""
        for out, answer in self.streaming():
            self.sender.finish(out, answer.ended_by(ending, whole=out.in_message))

    def _answered(self, out: Outgoing, end: End) -> None:
        call = self._calls.get(out.stream_id)
        if call is not None:
            self.finish(call, end)

    def _break(self, call: Call) -> None:
        """Reset the stream of a caller that sees no trailers."""
        if self._calls.get(call.stream_id) is call and self.is_open(call.stream_id):
            self._h2.reset_stream(call.stream_id, ErrorCodes.INTERNAL_ERROR)
            self.remove(call)
            self._flush_soon()

    def _stop_request(self, call: Call) -> None:
        """Tell the peer that nobody reads the rest of its request."""
        if not call.request_ended and not self._h2.streams[call.stream_id].closed:
            self._h2.reset_stream(call.stream_id, ErrorCodes.NO_ERROR)

    def _late(self, call: Call) -> None:
        call.timer = None
        self._cut(call, DeadlinePassed("the deadline passed before the answer was complete"))
        self._flush_soon()

    def _cut(self, call: Call, error: RRPAError) -> None:
        """End a call whose caller may give no window any more."""
        if call.out is None:
            self.finish(call, End(*told(error)))
        elif not self.sender.finish(call.out, error):
            # Half a message is out, and its rest may never find a window.
            self.drop(call, told(error)[0])
            if self.is_open(call.stream_id):
                self._h2.reset_stream(call.stream_id, ErrorCodes.CANCEL)
                self._h2.forget(call.stream_id)

    # --- Answers that nobody reads --------------------------------------------------------

    def window_came(self, call: Call | None) -> None:
        """The peer has given window to a call's stream; None: to the connection."""
        if call is None:
            self._fed_s = self._loop.time()
        else:
            call.shut_s = None

    def end_unread(self) -> None:
        """End the answers that found no window for UNREAD_S. Called now and then."""
        now_s = self._loop.time()
        all_shut = self._h2.outbound_flow_control_window <= 0
        for call in list(self._calls.values()):
            if not _is_shut(call, all_shut):
                call.shut_s = None
            elif call.shut_s is None:
                call.shut_s = now_s
            elif now_s - max(call.shut_s, self._fed_s if all_shut else 0.0) >= UNREAD_S:
                text = f"nothing of the answer was read for {UNREAD_S:g} s; read it or cancel it"
                self._cut(call, CapacityExhausted(text))
        self._flush_soon()

    # --- Ends that the peer chooses -------------------------------------------------------

    def was_reset(self, call: Call) -> None:
        """The peer wants no more of it."""
        late = call.due_s is not None and self._loop.time() >= call.due_s - LATE_S
        self.drop(call, Code.DEADLINE_EXCEEDED if late else Code.CANCELLED)

    def drop_all(self) -> None:
        """The connection is over."""
        for call in list(self._calls.values()):
            self.drop(call, Code.CANCELLED)

    def drop(self, call: Call, code: Code) -> None:
        """Leave a call that nobody waits for any more."""
        if call.out is not None:
            call.out.answer.leave(code)
        self.remove(call)

    def remove(self, call: Call) -> None:
        """Forget a call, and all that was kept for it."""
        self._calls.pop(call.stream_id, None)
        self.let_go(call)
        if call.timer is not None:
            call.timer.cancel()
        if call.out is not None:
            self.sender.drop(call.out)
        self._h2.forget(call.stream_id)

    def let_go(self, call: Call) -> None:
        """Give up what has arrived of a request."""
        if call.reader is not None:
            self._held.change(-CALL_BYTES - call.head.size_bytes - call.reader.held_bytes)
            call.reader = None


def _is_shut(call: Call, all_shut: bool) -> bool:
    """Whether a call has something to send and no window for it."""
    out = call.out
    if out is None or not (out.rest or out.answer.more):
        return False
    return all_shut or out.stream.outbound_flow_control_window <= 0
