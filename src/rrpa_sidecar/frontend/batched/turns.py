"""Whose turn it is to act on what has arrived: one connection between two looks at the sockets.

When calls arrive on many connections at once, the loop would open them all before it looks again,
and the first tokens of the first would wait behind the last: 64 calls on 8 connections are 15 ms.
So only one connection acts, then engines are heard and what is ready leaves, then the next acts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

Turn = Callable[[], None]


class Turns:
    """The queue of one server's connections."""

    __slots__ = ("_running", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[Turn] = deque()
        self._running = False

    def free(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether a turn may be taken at once. True: it is taken."""
        if self._running:
            return False
        self._running = True
        loop.call_soon(self._next, loop)
        return True

    def ask(self, loop: asyncio.AbstractEventLoop, turn: Turn) -> None:
        """Have `turn` called when all that have asked before had theirs. It must not raise."""
        self._waiting.append(turn)
        if not self._running:
            self._running = True
            loop.call_soon(self._next, loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._waiting:
            self._running = False
            return
        loop.call_soon(self._next, loop)
        self._waiting.popleft()()
