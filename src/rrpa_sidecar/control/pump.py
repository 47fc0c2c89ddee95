"""Lets the event loop drive the broker: at every ring, and at intervals while streams live."""

from __future__ import annotations

import asyncio

from rrpa_sidecar.control.broker import Broker
from rrpa_sidecar.shm.doorbell import Bell

LONGEST_FACTOR = 4
"""How much rarer sweeps become while nothing moves. Each wakes an idle process, which costs up to
0.4 ms of cold caches: 20 a second were 0.8 % of a core with a single silent stream."""


class Pump:
    """Rings and sweeps. An idle sidecar wakes up for files whose time is over, and to look for
    those that nobody owns.

    sweep_interval_s: time between sweeps while anything moves or is waited for; it doubles with
      each sweep in vain, up to four times that, which is how late a lost bell can make a token.
    """

    def __init__(self, broker: Broker, bell: Bell, sweep_interval_s: float) -> None:
        self._broker = broker
        self._bell = bell
        self._interval_s = sweep_interval_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._factor = 1
        self._timer: asyncio.Handle | None = None
        self._due_s = 0.0
        """When the timer fires, on the loop's clock. Of now, uvloop's handle has no time."""
        self._soon: asyncio.Handle | None = None

    def start(self) -> None:
        """Listen to the bell, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._bell.fileno(), self._rang)
        self._broker.on_busy = self._arm
        self._arm()

    def close(self) -> None:
        """Stop. The bell stays open: it belongs to whoever made it. Idempotent."""
        self._broker.on_busy = None
        if self._loop is not None:
            self._loop.remove_reader(self._bell.fileno())
            self._loop = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None

    def _rang(self) -> None:
        # Drained first: what an engine writes during the scan then rings for the next one.
        if self._bell.drain():
            self._factor = 1
            self._broker.scan()

    def _arm(self) -> None:
        """See to it that a sweep comes, and that it comes soon if somebody waits for it."""
        if self._loop is None:
            return
        if self._broker.seeking and self._soon is None:
            self._soon = self._loop.call_soon(self._seek)
        due = self._next_sweep_s(self._loop)
        if self._timer is not None:
            if self._due_s <= due:
                return
            self._timer.cancel()
        self._due_s = due
        self._timer = self._loop.call_at(due, self._sweep)

    def _next_sweep_s(self, loop: asyncio.AbstractEventLoop) -> float:
        """Return when a sweep is needed, on the loop's clock."""
        if self._broker.busy:
            if self._broker.hurried:
                self._factor = 1
            return loop.time() + self._factor * self._interval_s
        # Not before it is due: the loop's clock counts whole milliseconds.
        return loop.time() + self._broker.rest_s + 0.001

    def _seek(self) -> None:
        self._soon = None
        try:
            self._broker.seek()
        finally:
            self._arm()

    def _sweep(self) -> None:
        self._timer = None
        self._factor = min(2 * self._factor, LONGEST_FACTOR)
        try:
            if self._broker.sweep():
                self._factor = 1
        finally:  # a fault in one sweep is logged by the loop, and must not be the last sweep
            self._arm()
