"""Files that a sidecar or an engine of the past has left behind: found at the start, and later.

Who was killed cleans up nothing. So each sidecar looks through the directory when it starts and
then at intervals, and judges what nobody here knows by the only thing that cannot lie, the lease:

- held: somebody's, wherever that process lives. Left alone.
- free, a table or a file that was never born: nobody can use it any more. Removed at once.
- free, a log: over or lost, but its client may still come for the rest. Kept for a while first.
- no segment at all: not ours, whatever its name says. Left alone.

Several sidecars may do this in one directory at the same time, and each may be killed at any
point: a file is removed by whoever holds its lock, and only as a whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rrpa_sidecar.errors import CapacityExhausted
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import SegmentDirectory
from rrpa_sidecar.shm.reclaim import Reclaim, abandoned_bytes, reclaim

log = logging.getLogger(__name__)

LOOKS_PER_TURN = 64
"""Files opened in one turn, some 30 µs each: a full directory must hold up no token."""
NAMES_PER_TURN = 1024
"""Names gone through in one turn; 1 µs for one that is known already, as nearly all are."""


class Orphans:
    """Looks for files without an owner. It keeps none itself: `keep` does.

    interval_ns: from the end of one look through the directory to the beginning of the next.
    is_known: whether a segment of this name has somebody here who will remove it.
    keep: gets the name of a log that nobody knows and whose writer is gone, and the bytes of
      memory it holds. It is asked for by the same name again only if it is not known then.
    reclaimed: is told the kind, as `layout.kind_of` calls it, of each file removed here.
    """

    def __init__(
        self,
        directory: SegmentDirectory,
        interval_ns: int,
        now_ns: int,
        is_known: Callable[[str], bool],
        keep: Callable[[str, int], None],
        reclaimed: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._interval_ns = interval_ns
        self._is_known = is_known
        self._keep = keep
        self._reclaimed = reclaimed
        self._names: list[str] = []
        self.due_ns = now_ns
        """When `turn` has something to do."""

    def turn(self, now_ns: int) -> None:
        """Judge the next files, if it is time. Never waits."""
        if now_ns < self.due_ns:
            return
        try:
            if not self._names:
                self._names = self._directory.names()
            self._judge_some()
        except (OSError, CapacityExhausted) as exc:  # too many files are open: the next look
            log.warning("cannot look for files without an owner: %s", exc)
            self._names.clear()
        if not self._names:
            self.due_ns = now_ns + self._interval_ns

    def _judge_some(self) -> None:
        looks = 0
        for _ in range(min(len(self._names), NAMES_PER_TURN)):
            name = self._names.pop()
            if not layout.is_name(name) or self._is_known(name):
                continue
            self._judge(name)
            looks += 1
            if looks == LOOKS_PER_TURN:
                return

    def _judge(self, name: str) -> None:
        if layout.kind_of(name) != "log":
            self._remove(name)
        elif (size := abandoned_bytes(self._directory, name)) is not None:
            self._keep(name, size)

    def _remove(self, name: str) -> None:
        if reclaim(self._directory, name) is Reclaim.REMOVED:
            log.info("removed %s, which nobody can use any more", name)
            self._reclaimed(layout.kind_of(name))
