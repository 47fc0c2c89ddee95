"""Answers that are no stream of tokens: one message, a watch, a conversation. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from rrpa_sidecar.errors import CapacityExhausted, InvalidRequest
from rrpa_sidecar.frontend.answering import told
from rrpa_sidecar.frontend.batched.answer import End
from rrpa_sidecar.frontend.health import Health, Watch
from rrpa_sidecar.frontend.reflection import reflect
from rrpa_sidecar.status import Code

if TYPE_CHECKING:
    from rrpa_sidecar.frontend.batched.outgoing import Outgoing

QUESTIONS_LIMIT = 16


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
        pass
