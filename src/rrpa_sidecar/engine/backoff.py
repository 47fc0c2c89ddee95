"""How long to wait before the next try. Pure."""

from __future__ import annotations

from random import Random

FIRST_S = 0.05
LONGEST_S = 1.0
EAGER_LOOKS = 100
"""Looks for a sidecar at the shortest wait, some 4 s of them: a restart takes less, streams wait
for it, and a look costs 20 µs. A sidecar that is there and says no is asked ever less often."""


class Backoff:
    """Doubles from `FIRST_S` to `LONGEST_S`, each wait spread over half to all of itself.

    The spread keeps many engines from dialling a restarted sidecar at the same moment.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._next_s = FIRST_S
        self._looks = 0

    def next_s(self, *, only_looked: bool = False) -> float:
        """Return the seconds to wait now; the following answer is longer.

        only_looked: nobody was there to be asked. The first `EAGER_LOOKS` of these wait alike.
        """
        wait_s = self._next_s * self._random.uniform(0.5, 1.0)
        if only_looked and self._looks < EAGER_LOOKS:
            self._looks += 1
        else:
            self._next_s = min(self._next_s * 2, LONGEST_S)
        return wait_s

    def reset(self) -> None:
        """Begin again at the shortest wait: a try succeeded."""
        self._next_s = FIRST_S
        self._looks = 0
