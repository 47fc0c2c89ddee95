"""Takes turns: looks at many things, a bounded number at a time, and none is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Rotation(Generic[T]):
    """A set whose members are looked at in turn.

    Looking at all 500 idle streams twenty times a second would cost several percent of a core.
    Looking at a few costs nothing, and wherever a look finds news the next one follows at once.
    """

    def __init__(self) -> None:
        self._members: dict[T, None] = {}

    def __len__(self) -> int:
        return len(self._members)

    def add(self, member: T) -> None:
        self._members[member] = None

    def discard(self, member: T) -> None:
        self._members.pop(member, None)

    def turn(self, look: Callable[[T], bool], misses: int) -> None:
        """Call `look` on members, oldest first, until `misses` of them had no news.

        A member that had no news goes to the end; `look` may add and discard members.
        """
        for member in list(self._members):
            if misses <= 0:
                return
            if member not in self._members or look(member):
                continue
            misses -= 1
            if member in self._members:
                del self._members[member]
                self._members[member] = None

    def turn_all(self, look: Callable[[T], bool]) -> None:
        """Call `look` once on every member."""
        self.turn(look, misses=len(self._members))
