"""Lets the event loop drive the broker: at every ring, and at intervals while streams live."""

from __future__ import annotations

import asyncio

from rrpa_sidecar.control.broker import Broker
from rrpa_sidecar.shm.doorbell import Bell


class Pump:
    """Rings and sweeps. An idle sidecar does not wake up at all."""

    def __init__(self, broker: Broker, bell: Bell, sweep_interval_s: float) -> None:
        self._broker = broker
        self._bell = bell
        self._interval_s = sweep_interval_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Listen to the bell, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._bell.fileno(), self._rang)
        self._broker.on_busy = self._arm
        if self._broker.busy:
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

    def _rang(self) -> None:
        # Drained first: what an engine writes during the scan then rings for the next one.
        if self._bell.drain():
            self._broker.scan()

    def _arm(self) -> None:
        if self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(self._interval_s, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        try:
            self._broker.sweep()
        finally:  # a fault in one sweep is logged by the loop, and must not be the last sweep
            if self._broker.busy:
                self._arm()
