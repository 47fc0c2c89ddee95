"""One bell for many writes."""

from __future__ import annotations

from threading import Lock, get_ident

from rrpa_sidecar.shm.doorbell import Ringer


class StepBell:
    """Rings the sidecar after a write, or once for all writes inside `with bell:`.

    The block belongs to the thread that entered it; other threads' writes ring at once. Blocks
    of one bell do not overlap. While a sidecar drains there are two, and both are rung: telling
    whose the write was would cost every write, and a ring for nothing costs one look. Without a
    ringer (no sidecar) ringing does nothing.
    """

    def __init__(self) -> None:
        self._ringers: list[Ringer] = []
        self._lock = Lock()
        self._owner = 0
        self._due = False

    def add(self, ringer: Ringer) -> None:
        """Ring `ringer` too from now on."""
        with self._lock:
            self._ringers.append(ringer)

    def remove(self, ringer: Ringer) -> None:
        """Ring `ringer` no more, and close it."""
        with self._lock:  # no thread may be in its `ring` meanwhile
            self._ringers.remove(ringer)
            ringer.close()

    def ring(self) -> None:
        if self._owner and self._owner == get_ident():
            self._due = True
            return
        with self._lock:
            for ringer in self._ringers:
                ringer.ring()

    def __enter__(self) -> None:
        self._owner = get_ident()

    def __exit__(self, *_: object) -> None:
        self._owner = 0
        if self._due:
            self._due = False
            self.ring()
