"""Peers that never speak HTTP/2, and peers that vanished without a word: both are found by time."""

from __future__ import annotations

import asyncio
from typing import Protocol

from rrpa_sidecar.frontend.limits import GREETING_S, KEEPALIVE_S, KEEPALIVE_TIMEOUT_S


class Watched(Protocol):
    """What is done about a peer."""

    def is_mute(self) -> None:
        """The time to greet is over."""
        ...

    def look(self) -> None:
        """A while has passed: see to what nobody reads."""
        ...

    def ask(self) -> None:
        """Ping it: it has said nothing for a while."""
        ...

    def is_gone(self) -> None:
        """It did not answer."""
        ...


class Liveness:
    """One timer of a connection: first for the greeting, then for a sign of life."""

    __slots__ = ("_connection", "_heard", "_loop", "_timer", "greeted")

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: Watched) -> None:
        self._loop = loop
        self._connection = connection
        self._heard = True
        self.greeted = False
        """Whether the peer's SETTINGS have arrived."""
        self._timer = loop.call_later(GREETING_S, self._check_greeting)

    def heard(self) -> None:
        """Something arrived."""
        self._heard = True

    def stop(self) -> None:
        """The connection ends."""
        self._timer.cancel()

    def _check_greeting(self) -> None:
        if not self.greeted:
            self._connection.is_mute()
            return
        self._heard = False
        self._timer = self._loop.call_later(KEEPALIVE_S - GREETING_S, self._check_alive)

    def _check_alive(self) -> None:
        self._connection.look()
        if self._heard:
            self._heard = False
            self._timer = self._loop.call_later(KEEPALIVE_S, self._check_alive)
            return
        self._connection.ask()
        self._timer = self._loop.call_later(KEEPALIVE_TIMEOUT_S, self._check_answer)

    def _check_answer(self) -> None:
        if self._heard:
            self._check_alive()
        else:
            self._connection.is_gone()
