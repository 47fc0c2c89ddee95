"""Files that nobody needs any more, until they are gone."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from rrpa_sidecar.clock import Clock
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import SegmentDirectory
from rrpa_sidecar.shm.reclaim import Reclaim, reclaim

log = logging.getLogger(__name__)

FIRST_PAUSE_NS = 20_000_000
PATIENT_PAUSE_NS = 500_000_000
"""From here on nobody expects the file to go soon; a rare sweep will find that it can."""
LONGEST_PAUSE_NS = 5_000_000_000
"""A writer that keeps its lease is asked ever less often: each look costs some 20 µs."""


@dataclass(slots=True, eq=False)
class _Leftover:
    name: str
    on_done: Callable[[Reclaim], None]
    due_ns: int
    pause_ns: int = FIRST_PAUSE_NS


class Leftovers:
    """Removes files once their writers have let go of them."""

    def __init__(self, directory: SegmentDirectory, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._waiting: dict[_Leftover, None] = {}
        self._names: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    @property
    def hurried(self) -> bool:
        """Whether one of them should be gone soon."""
        return any(each.pause_ns < PATIENT_PAUSE_NS for each in self._waiting)

    def add(self, name: str, on_done: Callable[[Reclaim], None]) -> None:
        """Remove `name` now, or later if it is held; then call `on_done` with the outcome.

        on_done: gets every outcome but HELD, once; may be called before `add` returns.
        """
        leftover = _Leftover(name, on_done, due_ns=self._clock.now_ns())
        self._waiting[leftover] = None
        self._names[name] += 1
        self._try(leftover)

    def add_unborn(self) -> None:
        """Remove what a writer that was killed left half-made: nobody else knows its name.

        Those that a live writer is making are held; it renames them, and then they are missing.
        """
        try:
            names = self._directory.names()
        except OSError as exc:  # the next engine that is lost brings them up again
            log.warning("cannot look for half-made files: %s", exc.strerror)
            return
        for name in names:
            if layout.is_name(name) and layout.is_temporary(name) and name not in self._names:
                self.add(name, lambda _: None)

    def sweep(self, now_ns: int) -> None:
        """Try those that are due."""
        due = [leftover for leftover in self._waiting if leftover.due_ns <= now_ns]
        for leftover in due:
            self._try(leftover)

    def _try(self, leftover: _Leftover) -> None:
        try:
            outcome = reclaim(self._directory, leftover.name)
        except OSError as exc:  # too many files are open; this one will still be there later
            log.warning("cannot remove %s yet: %s", leftover.name, exc.strerror)
            outcome = Reclaim.HELD
        if outcome is Reclaim.HELD:
            leftover.due_ns = self._clock.now_ns() + leftover.pause_ns
            leftover.pause_ns = min(2 * leftover.pause_ns, LONGEST_PAUSE_NS)
            return
        if outcome is Reclaim.FOREIGN:
            log.warning("%s is not a segment any more; left alone", leftover.name)
        del self._waiting[leftover]  # first: `on_done` is owed once, even if it raises
        self._names[leftover.name] -= 1
        if not self._names[leftover.name]:
            del self._names[leftover.name]
        leftover.on_done(outcome)
