"""Which bytes of which answers go out now: one batch for each turn of the loop. No I/O.

This is the whole back-pressure: an answer that has no window, and everything while the transport
is behind, is not asked for its next message. Its bytes stay in the log and leave later in larger
frames. Between two turns an answer holds at most the rest of one message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from rrpa_sidecar.frontend.batched import wire
from rrpa_sidecar.frontend.batched.answers import MESSAGE_OVERHEAD_BYTES, NOTHING, Answer, End
from rrpa_sidecar.stream.stream import FRAME_LIMIT_BYTES

if TYPE_CHECKING:
    from h2.connection import H2Connection
    from h2.stream import H2Stream

BATCH_BYTES = 256 * 1024
"""Most bytes of one batch: others of the loop have their turn after it."""

LEAST_BYTES = MESSAGE_OVERHEAD_BYTES + 4
"""A message may have these whatever the windows say; what does not fit is held and cut."""


class Outgoing:
    """One answer on its way out."""

    __slots__ = ("answer", "gone", "in_message", "queued", "rest", "stream", "stream_id")

    def __init__(self, stream_id: int, stream: H2Stream, answer: Answer = NOTHING) -> None:
        self.stream_id = stream_id
        self.stream = stream
        self.answer = answer
        self.rest = b""
        """The part of a message that found no window."""
        self.in_message = False
        """Some of that message has been sent, so all of it has to be."""
        self.queued = False
        self.gone = False


class Sender:
    """Round robin over the answers of one connection that have something to say."""

    def __init__(self, h2: H2Connection, on_end: Callable[[Outgoing, End], None]) -> None:
        """on_end: called when everything of an answer but its trailers is in the batch."""
        self._h2 = h2
        self._on_end = on_end
        self._ready: deque[Outgoing] = deque()
        self.frames = 0
        """DATA frames made so far."""

    @property
    def has_work(self) -> bool:
        """Whether another batch would hold something, if the transport takes it."""
        return bool(self._ready) and self._h2.outbound_flow_control_window > 0

    def mark(self, out: Outgoing) -> None:
        """Say that `out` may have something new, or window. Cheap, and harmless if not so."""
        if not out.queued and not out.gone:
            out.queued = True
            self._ready.append(out)

    def finish(self, out: Outgoing, error: Exception) -> bool:
        """End `out` with `error`, now and without any window.

        False: some of a message was sent, so its rest has to go first, and then the end.
        """
        out.answer.end(error)
        if out.in_message:
            return False
        out.rest = b""
        end = out.answer.next(LEAST_BYTES)
        assert isinstance(end, End)
        self._on_end(out, end)
        return True

    def batch(self) -> list[bytes]:
        """Return what goes out now, headers and trailers included."""
        h2, ready = self._h2, self._ready
        parts = [h2.data_to_send()]
        room, frame_limit = BATCH_BYTES, h2.max_outbound_frame_size
        limit = min(frame_limit, FRAME_LIMIT_BYTES)
        while ready and room > 0:
            window = h2.outbound_flow_control_window
            if window <= 0:
                break
            out = ready.popleft()
            out.queued = False
            if out.gone:
                continue
            window = min(window, out.stream.outbound_flow_control_window)
            sent = self._turn(out, window, limit, frame_limit, parts)
            if sent:
                h2.outbound_flow_control_window -= sent
                out.stream.outbound_flow_control_window -= sent
                room -= sent
        parts.append(h2.data_to_send())
        return parts

    def _turn(
        self, out: Outgoing, window: int, limit: int, frame_limit: int, parts: list[bytes]
    ) -> int:
        """Let one answer say one message, or the rest of one; return how much window it took."""
        body = out.rest
        if not body:
            message = out.answer.next(max(min(window, limit), LEAST_BYTES))
            if message is None:
                return 0
            if isinstance(message, End):
                self._on_end(out, message)
                return 0
            size = len(message) + wire.PREFIX_BYTES
            if size <= window and size <= frame_limit:
                parts.append(wire.one_frame(out.stream_id, message))
                self.frames += 1
                self._was_sent(out)
                return size
            body = wire.prefixed(message)
        taken = min(len(body), window) if window > 0 else 0
        for frame in wire.frames(out.stream_id, body[:taken], frame_limit):
            parts.append(frame)
            self.frames += 1
        out.rest = body[taken:]
        if not out.rest:
            self._was_sent(out)
        else:
            out.in_message = out.in_message or taken > 0
            if taken and out.stream.outbound_flow_control_window > taken:
                self.mark(out)  # it was the connection's window
        return taken

    def _was_sent(self, out: Outgoing) -> None:
        out.in_message = False
        out.answer.sent()
        if out.answer.more:
            self.mark(out)
