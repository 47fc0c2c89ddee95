"""How a front end takes tokens right from the broker's scan, instead of being woken for each.

`Moves` and the size of a tail's record are the terms of it; front ends know them from here, since
shared memory is below what they may import.
"""

from __future__ import annotations

from typing import Any, Protocol

from rrpa_sidecar.shm.layout import TAIL_RECORD_BYTES
from rrpa_sidecar.shm.table import Moves

__all__ = ["TAIL_RECORD_BYTES", "Moves", "NoShortWay", "ShortWay"]


class ShortWay(Protocol):
    """A front end that takes tokens right from the scan, without being woken for each."""

    def begin_step(self) -> None:
        """Something has moved."""
        ...

    def take(self, places: list[Any], moves: Moves) -> list[tuple[int, int]]:
        """Send what can be sent now of the streams that have a place and have not ended.

        places: slot → what `Reading.follow` was given, or None.

        Returns the (slot, word) pairs of all others.
        """
        ...

    def end_step(self) -> None:
        """All that has moved was looked at: what was taken may leave."""
        ...


class NoShortWay:
    """Wakes everybody."""

    def begin_step(self) -> None:
        pass

    def take(self, places: list[Any], moves: Moves) -> list[tuple[int, int]]:
        return list(moves.pairs)

    def end_step(self) -> None:
        pass
