"""Which bytes of which answers go out now: one batch for each engine step. No I/O.

This is the whole back-pressure: an answer that has no window, and everything while the transport
is behind, is not asked for its next message. Its bytes stay in the log and leave later in larger
frames. Between two turns an answer holds at most the rest of one message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rrpa_sidecar.clock import Clock
from rrpa_sidecar.control.live import Place
from rrpa_sidecar.frontend.batched import wire
from rrpa_sidecar.frontend.batched.answers import MESSAGE_OVERHEAD_BYTES, NOTHING, Answer, End
from rrpa_sidecar.frontend.batched.heads import Head
from rrpa_sidecar.metrics import ModelMetrics
from rrpa_sidecar.stream.stream import FRAME_LIMIT_BYTES, StreamReader

if TYPE_CHECKING:
    from h2.connection import H2Connection
    from h2.stream import H2Stream

BATCH_BYTES = 256 * 1024
"""Most bytes of one batch: others of the loop have their turn after it."""

LEAST_BYTES = MESSAGE_OVERHEAD_BYTES + 4
"""A message may have these whatever the windows say; what does not fit is held and cut."""

SHORT_BYTES = 4096
"""Most raw bytes that go the short way. Three times as many, and their head, fit into the smallest
frame that HTTP/2 lets a peer ask for, 16,384 bytes, and so into a window of that size."""

SHORT_WINDOW = 16384


class Outgoing(Place):
    """One answer on its way out."""

    __slots__ = (
        "answer",
        "counters",
        "gone",
        "head",
        "in_message",
        "last_frame_ns",
        "reader",
        "rest",
        "stream",
        "stream_id",
    )

    head: Head
    counters: ModelMetrics

    def __init__(
        self,
        stream_id: int,
        stream: H2Stream,
        inbox: list[Outgoing],
        answer: Answer = NOTHING,
    ) -> None:
        super().__init__(inbox)
        self.stream_id = stream_id
        self.stream = stream
        self.answer = answer
        self.rest = b""
        """The part of a message that found no window."""
        self.in_message = False
        """Some of that message has been sent, so all of it has to be."""
        self.reader: StreamReader | None = None
        """Its next token can go the short way, with `head` before it, counted in `counters`."""
        self.last_frame_ns = 0
        self.gone = False


class Sender:
    """Round robin over the answers of one connection that have something to say."""

    def __init__(
        self, h2: H2Connection, clock: Clock, on_end: Callable[[Outgoing, End], None]
    ) -> None:
        """on_end: called when everything of an answer but its trailers is in the batch."""
        self._h2 = h2
        self._clock = clock
        self._on_end = on_end
        self.ready: list[Outgoing] = []
        """Answers whose turn it is: `mark` puts them there, and so does the broker's scan."""
        self.frames = 0
        """DATA frames made so far."""

    @property
    def has_work(self) -> bool:
        """Whether another batch would hold something, if the transport takes it."""
        return bool(self.ready) and self._h2.outbound_flow_control_window > 0

    def mark(self, out: Outgoing) -> None:
        """Say that `out` may have something new, or window. Cheap, and harmless if not so."""
        out.word = 0  # the long way: it knows of ends and of windows
        if not out.queued and not out.gone:
            out.queued = True
            self.ready.append(out)

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

    def batch(self) -> list[bytes]:
        """Return what goes out now, headers and trailers included.

        A token's whole way through the front end is the `if` below: no event, no message, no call
        that the profile would show. Everything else, from the first frame to the end, a small
        window or a large backlog, goes the long way, by `_turn`.
        """
        h2 = self._h2
        parts = [h2.data_to_send()]
        now_ns = self._clock.now_ns()
        window = h2.outbound_flow_control_window
        enough = max(window - BATCH_BYTES, 0)
        counters, since_ns, frames, n_bytes = None, 0, 0, 0
        append, frame_head = parts.append, wire.HEAD_BYTES
        while self.ready and window > enough:
            turns = iter(self.ready[:])
            self.ready.clear()
            for out in turns:
                if window <= enough:
                    self.ready[:0] = [out, *turns]
                    break
                out.queued = False
                stream = out.stream
                left = stream.outbound_flow_control_window
                reader = out.reader
                if (
                    reader is not None
                    and left >= SHORT_WINDOW
                    and window >= SHORT_WINDOW
                    and (data := reader.promised(out.word, SHORT_BYTES, out.tail))
                ):
                    size = len(data)
                    head = out.head(out.stream_id, reader.offset - size, size)
                    append(head)
                    append(data)
                    taken = len(head) - frame_head + size
                    # Streams of one step are alike, so that counting is mostly these comparisons.
                    if out.last_frame_ns != since_ns or out.counters is not counters:
                        if counters is not None:
                            counters.frames_alike(frames, n_bytes, (now_ns - since_ns) / 1e9)
                            self.frames += frames
                        counters, since_ns, frames, n_bytes = out.counters, out.last_frame_ns, 0, 0
                    out.last_frame_ns = now_ns
                    frames += 1
                    n_bytes += size
                elif out.gone:
                    continue
                else:
                    h2.outbound_flow_control_window = window
                    taken = self._turn(out, min(window, left), parts)
                    left = stream.outbound_flow_control_window
                stream.outbound_flow_control_window = left - taken
                window -= taken
        h2.outbound_flow_control_window = window
        if counters is not None:
            counters.frames_alike(frames, n_bytes, (now_ns - since_ns) / 1e9)
            self.frames += frames
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
