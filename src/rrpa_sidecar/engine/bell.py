"""One bell for many writes."""

from __future__ import annotations

from threading import Lock, get_ident

from rrpa_sidecar.shm.doorbell import Ringer


class StepBell:
    """Rings the sidecar after a write, or once for all writes inside `with bell:`.

    The block belongs to the thread that entered it; other threads' writes ring at once. Blocks
    of one bell do not overlap. Without a ringer (no sidecar) ringing does nothing.
    """

    def __init__(self) -> None:
        self._ringer: Ringer | None = None
        self._lock = Lock()
        self._owner = 0
        self._due = False

    def connect(self, ringer: Ringer | None) -> None:
        """Ring `ringer` from now on and close the one before; None: there is no sidecar."""
        with self._lock:  # no thread may be in the old one's `ring` meanwhile
            if self._ringer is not None:
                self._ringer.close()
            self._ringer = ringer

    def ring(self) -> None:
        if self._owner and self._owner == get_ident():
            self._due = True
            return
        with self._lock:
            if self._ringer is not None:
                self._ringer.ring()

    def __enter__(self) -> None:
        self._owner = get_ident()

    def __exit__(self, *_: object) -> None:
        self._owner = 0
        if self._due:
            self._due = False
            self.ring()
