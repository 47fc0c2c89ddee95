"""The answer that is a stream of tokens: events as messages, and its short way. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rrpa_sidecar.control.broker import Reading
from rrpa_sidecar.errors import RRPAError
from rrpa_sidecar.frontend.answering import told
from rrpa_sidecar.frontend.batched.answer import MESSAGE_OVERHEAD_BYTES, End
from rrpa_sidecar.frontend.batched.heads import Head
from rrpa_sidecar.frontend.call import Call, Ending
from rrpa_sidecar.frontend.frames import Frames
from rrpa_sidecar.status import Code
from rrpa_sidecar.stream.events import Data, Failed

if TYPE_CHECKING:
    from rrpa_sidecar.frontend.batched.outgoing import Outgoing


class StreamAnswer:
    """A stream, created or resumed. It is left when the end is returned."""

    __slots__ = ("_call", "_done", "_error", "_frames", "_head", "_left", "_stream", "_unsent")

    def __init__(self, call: Call, stream: Reading, frames: Frames, head: Head) -> None:
        self._call = call
        self._stream = stream
        self._frames = frames
        self._head = head
        self._error: Exception | None = None
        self._unsent = 0
        self._done = False
        self._left = False

    def next(self, limit_bytes: int) -> bytes | End | None:
        if self._error is not None:
            return self._failed(self._error)
        if self._done:
            return self._finished()
        try:
            event = self._stream.poll(limit_bytes - MESSAGE_OVERHEAD_BYTES)
        except Exception as error:  # noqa: BLE001 - all of them become a status
            return self._failed(error)
        if event is None:
            return None
        if isinstance(event, Data):
            self._unsent = len(event.data)
            return self._frames.data(event)
        if isinstance(event, Failed):
            return self._failed(event.error)
        cut = self._frames.cut(event)
        if cut is not None:
            return self._failed(cut)
        self._done = True
        self._call.finished(event)
        return self._frames.finish(event) or self._finished()

    def sent(self, out: Outgoing) -> None:
        if not self._unsent:
            return
        call = self._call
        call.last_frame_ns = out.last_frame_ns or call.last_frame_ns
        call.wrote(self._unsent)
        self._unsent = 0
        out.last_frame_ns = call.last_frame_ns
        out.counters = call.counters
        out.head = self._head
        out.reader = self._stream.follow(out, out.word)

    @property
    def more(self) -> bool:
        return self._done or self._error is not None or not self._stream.caught_up

    def end(self, error: Exception) -> None:
        self._error = self._error or error

    def ended_by(self, ending: Ending, *, whole: bool) -> RRPAError:
        """Return what `ending` makes of this one. whole: the message under way will be sent."""
        offset = self._stream.offset - (0 if whole else self._unsent)
        return ending(offset, self._stream.resumable)

    def leave(self, code: Code, text: str = "") -> None:
        if self._left:
            return
        self._left = True
        # What went the short way was counted nowhere else.
        begun = self._stream.start_offset
        self._call.delivered_bytes = max(self._stream.offset - self._unsent - begun, 0)
        self._stream.waker = None
        self._stream.leave()
        self._call.ended(code, text)

    def _finished(self) -> End:
        self.leave(Code.OK)
        return End(Code.OK, "", self._call.trailers())

    def _failed(self, error: Exception) -> End:
        code, text = told(error, self._call.labels)
        self.leave(code, text)
        return End(code, text, self._call.trailers(), self._frames.broken() is not None)
