"""Where the messages of an answer come from: a stream, a watch, or one value. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rrpa_sidecar.control.broker import LiveStream
from rrpa_sidecar.errors import CapacityExhausted, InvalidRequest
from rrpa_sidecar.frontend.answering import told
from rrpa_sidecar.frontend.batched.heads import Head
from rrpa_sidecar.frontend.call import Call
from rrpa_sidecar.frontend.frames import Frames
from rrpa_sidecar.frontend.health import Health, Watch
from rrpa_sidecar.frontend.metadata import Pairs
from rrpa_sidecar.frontend.reflection import reflect
from rrpa_sidecar.status import Code
from rrpa_sidecar.stream.events import Data, Failed

if TYPE_CHECKING:
    from rrpa_sidecar.frontend.batched.sender import Outgoing

MESSAGE_OVERHEAD_BYTES = 24
"""Most bytes that a message adds to a piece of the answer: gRPC's prefix, tags, lengths, offset."""

QUESTIONS_LIMIT = 16


@dataclass(frozen=True, slots=True)
class End:
    """The end of an answer."""

    code: Code
    text: str = ""
    metadata: Pairs = ()
    broken: bool = False
    """No trailers reach this caller: the stream is reset, so that it does not look complete."""


class Answer(Protocol):
    """The messages of one answer, taken one at a time, each only when it can be sent."""

    def next(self, limit_bytes: int) -> bytes | End | None:
        """Return the next message or the end, or None while there is nothing new. Never waits.

        limit_bytes: what the message should not exceed; a few bytes are always possible.
        """
        ...

    def sent(self, out: Outgoing) -> None:
        """Take note that the last message was handed to the connection, whole.

        An answer that can go the short way from now on says so in `out`.
        """
        ...

    @property
    def more(self) -> bool:
        """Whether `next` may have something at once."""
        ...

    def end(self, error: Exception) -> None:
        """Let `next` return the end that `error` makes."""
        ...

    def leave(self, code: Code) -> None:
        """The caller is gone, with `code`. No effect after the end."""
        ...


class StreamAnswer:
    """CreateStream and CreateMessage. The stream is left when the end is returned."""

    __slots__ = ("_call", "_done", "_error", "_frames", "_head", "_left", "_stream", "_unsent")

    def __init__(self, call: Call, stream: LiveStream, frames: Frames, head: Head) -> None:
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
        self._done = True
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

    def leave(self, code: Code, text: str = "") -> None:
        if self._left:
            return
        self._left = True
        # What went the short way was counted nowhere else.
        self._call.delivered_bytes = self._stream.offset - self._unsent
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


class OneAnswer:
    """A single message, which is there already."""

    __slots__ = ("_error", "_message")

    def __init__(self, message: bytes) -> None:
        self._message: bytes | None = message
        self._error: Exception | None = None

    def next(self, limit_bytes: int) -> bytes | End | None:
        if self._error is not None:
            return End(*told(self._error))
        message, self._message = self._message, None
        return End(Code.OK) if message is None else message

    def sent(self, out: Outgoing) -> None:
        pass

    @property
    def more(self) -> bool:
        return True

    def end(self, error: Exception) -> None:
        self._error = error

    def leave(self, code: Code) -> None:
        pass


class WatchAnswer:
    """grpc.health.v1's Watch."""

    __slots__ = ("_error", "_health", "_tell", "_watch")

    def __init__(self, health: Health, watch: Watch, tell: Callable[[], None]) -> None:
        self._health = health
        self._watch = watch
        self._tell = tell
        self._error: Exception | None = None
        health.watchers.add(tell)

    def next(self, limit_bytes: int) -> bytes | End | None:
        if self._error is None and not self._health.closed:
            return self._watch.news()
        self.leave(Code.OK)
        return End(*told(self._error)) if self._error else End(Code.OK)

    def sent(self, out: Outgoing) -> None:
        pass

    @property
    def more(self) -> bool:
        return self._error is not None or self._health.closed

    def end(self, error: Exception) -> None:
        self._error = error

    def leave(self, code: Code) -> None:
        self._health.watchers.discard(self._tell)


class ReflectionAnswer:
    """Reflection: an answer to each request, as they come."""

    __slots__ = ("_asked", "_closed", "_error")

    def __init__(self) -> None:
        self._asked: deque[bytes] = deque()
        self._closed = False
        self._error: Exception | None = None

    def ask(self, request: bytes) -> None:
        """Take one more request; CapacityExhausted if too many wait for answers to be read."""
        if len(self._asked) >= QUESTIONS_LIMIT:
            raise CapacityExhausted(f"{QUESTIONS_LIMIT} questions wait; read the answers first")
        self._asked.append(request)

    def close(self) -> None:
        """No more requests come."""
        self._closed = True

    def next(self, limit_bytes: int) -> bytes | End | None:
        if self._error is None and self._asked:
            try:
                return reflect(self._asked.popleft())
            except InvalidRequest as error:
                self._error = error
        if self._error is not None:
            return End(*told(self._error))
        return End(Code.OK) if self._closed else None

    def sent(self, out: Outgoing) -> None:
        pass

    @property
    def more(self) -> bool:
        return bool(self._asked) or self._closed or self._error is not None

    def end(self, error: Exception) -> None:
        self._error = error

    def leave(self, code: Code) -> None:
        self._asked.clear()


class Nothing:
    """No answer yet. A stream may wake its front end while it is being opened."""

    __slots__ = ()
    more = False

    def next(self, limit_bytes: int) -> None:
        return None

    def sent(self, out: Outgoing) -> None:
        pass

    def end(self, error: Exception) -> None:
        pass

    def leave(self, code: Code) -> None:
        pass


NOTHING = Nothing()
