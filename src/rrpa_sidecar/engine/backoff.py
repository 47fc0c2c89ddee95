"""How long to wait before the next try. Pure."""

from __future__ import annotations

from random import Random

FIRST_S = 0.05
LONGEST_S = 1.0
"""A dial on a Unix socket is cheap, and a sidecar that restarts is back within half a second."""


class Backoff:
    """Doubles from `FIRST_S` to `LONGEST_S`, each wait spread over half to all of itself.

    The spread keeps many engines from dialling a restarted sidecar at the same moment.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._next_s = FIRST_S

    def next_s(self) -> float:
        """Return the seconds to wait now; the following answer is longer."""
        wait_s = self._next_s * self._random.uniform(0.5, 1.0)
        self._next_s = min(self._next_s * 2, LONGEST_S)
        return wait_s

    def reset(self) -> None:
        """Begin again at the shortest wait: a try succeeded."""
        self._next_s = FIRST_S
