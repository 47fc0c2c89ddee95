"""Which bytes of which answers go out now: one batch for each engine step. No I/O.

This is the whole back-pressure: an answer that has no window, and everything while the transport
is behind, is not asked for its next message. Its bytes stay in the log and leave later in larger
frames. Between two turns an answer holds at most the rest of one message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rrpa_sidecar.frontend.batched import wire
from rrpa_sidecar.frontend.batched.answer import MESSAGE_OVERHEAD_BYTES, End
from rrpa_sidecar.frontend.batched.outgoing import Outgoing
from rrpa_sidecar.frontend.batched.step import SHORT_WINDOW_BYTES
from rrpa_sidecar.stream.stream import FRAME_LIMIT_BYTES

if TYPE_CHECKING:
    from h2.connection import H2Connection

BATCH_BYTES = 64 * 1024
"""Most bytes of one batch: others of the loop have their turn after it, so it is what a token may
wait for that comes meanwhile. A batch takes 0.3 ms of CPU; with 256 KiB it took 1.1 ms. Smaller
ones win little, and none cost more: bulk through Envoy took the same CPU, within 8 % and without
an order, from 16 to 256 KiB."""

LEAST_BYTES = MESSAGE_OVERHEAD_BYTES + 4
"""A message may have these whatever the windows say; what does not fit is held and cut."""


class Sender:
    """Round robin over the answers of one connection that have something to say."""

    def __init__(self, h2: H2Connection, on_end: Callable[[Outgoing, End], None]) -> None:
        """on_end: called when everything of an answer but its trailers is in the batch."""
        self._h2 = h2
        self._on_end = on_end
        self._urgent: list[Outgoing] = []
        self._ready: list[Outgoing] = []
        self._parts: list[bytes] = [b""]
        """The next batch: a place for what h2 has to say, then heads and tokens in turn."""
        self.frames = 0
        """DATA frames made so far."""
        self.credit = 0
        """Bytes that the short way may put into this step."""
        self._given = 0
        self.append = self._parts.append

    @property
    def has_work(self) -> bool:
        """Whether another batch would hold something, if the transport takes it."""
        if len(self._parts) > 1:
            return True
        waits = self._urgent or self._ready
        return bool(waits) and self._h2.outbound_flow_control_window > 0

    def mark(self, out: Outgoing) -> None:
        """Say that `out` may have something new, or window. Cheap, and harmless if not so."""
        if not out.queued and not out.gone:
            out.queued = True
            self._ready.append(out)

    def mark_urgent(self, out: Outgoing) -> None:
        """As `mark`, for one that had sent all it had: its token goes before others' backlogs.

        Behind 46 backlogs it waited for 0.7 MB of them, 3 ms.
        """
        if not out.queued and not out.gone:
            out.queued = True
            self._urgent.append(out)

    def drop(self, out: Outgoing) -> None:
        """Forget an answer whose caller is gone: its log may be closed from now on."""
        out.gone = True
        out.reader = None
        out.rest = b""

    def finish(self, out: Outgoing, error: Exception) -> bool:
        """End `out` with `error`, now and without any window.

        False: some of a message was sent, so its rest has to go first, and then the end.
        """
        out.reader = None
        out.answer.end(error)
        if out.in_message:
            return False
        out.rest = b""
        end = out.answer.next(LEAST_BYTES)
        assert isinstance(end, End)
        self._on_end(out, end)
        return True

    def begin_step(self, room: int) -> None:
        """Give credit for frames that are appended until the next batch.

        room: bytes that the transport takes now.
        """
        self._settle()  # of a step that nothing followed
        window = self._h2.outbound_flow_control_window - SHORT_WINDOW_BYTES
        self._given = self.credit = max(min(window, room), 0)

    def _settle(self) -> None:
        """Take what the short way has used from the connection's window."""
        self._h2.outbound_flow_control_window -= self._given - self.credit
        self.credit = self._given = 0

    def batch(self) -> list[bytes]:
        """Return what goes out now, headers and trailers included; what was appended first.

        Tokens of the short way leave before the rest of large backlogs, and after what h2 has to
        say: they may count on a window that it acknowledges there, and a peer that has not read
        this yet, nghttp2 for one, ends the connection for it.
        """
        h2, parts = self._h2, self._parts
        self._settle()
        self.frames += len(parts) // 2
        self._parts = [b""]
        self.append = self._parts.append
        parts[0] = h2.data_to_send()
        window = h2.outbound_flow_control_window
        enough = max(window - BATCH_BYTES, 0)
        while (self._urgent or self._ready) and window > enough:
            turns = iter(self._urgent + self._ready)
            self._urgent.clear()
            self._ready.clear()
            for out in turns:
                if window <= enough:
                    self._ready[:0] = [out, *turns]
                    break
                out.queued = False
                if out.gone:
                    continue
                stream = out.stream
                taken = self._turn(out, min(window, stream.outbound_flow_control_window), parts)
                stream.outbound_flow_control_window -= taken
                window -= taken
                h2.outbound_flow_control_window = window
        parts.append(h2.data_to_send())
        return parts

    def _turn(self, out: Outgoing, window: int, parts: list[bytes]) -> int:
        """Let one answer say one message, or the rest of one; return how much window it took."""
        frame_limit = self._h2.max_outbound_frame_size
        body = out.rest
        if not body:
            limit = min(window, frame_limit, FRAME_LIMIT_BYTES)
            message = out.answer.next(max(limit, LEAST_BYTES))
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
            out.reader = None
            out.in_message = out.in_message or taken > 0
            if taken and out.stream.outbound_flow_control_window > taken:
                self.mark(out)  # it was the connection's window
        return taken

    def _was_sent(self, out: Outgoing) -> None:
        out.in_message = False
        out.answer.sent(out)
        if out.answer.more:
            self.mark(out)
