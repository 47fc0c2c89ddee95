"""Time as an object, so that tests can jump it.

Every duration, deadline and latency of the product comes from the monotonic clock, which NTP
cannot step. CLOCK_MONOTONIC is the same for all processes of one machine, so an engine's stamp
and the sidecar's can be subtracted.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of monotonic time."""

    def now_ns(self) -> int:
        """Return nanoseconds since some fixed moment of this boot; never goes back."""
        ...


class SystemClock:
    """CLOCK_MONOTONIC."""

    def now_ns(self) -> int:
        return time.monotonic_ns()
