"""What has arrived on a connection and not been acted on yet: a turn's worth at a time. Pure.

Whoever sends much at once, requests or rubbish, waits for itself and lets its neighbours through.
"""

from __future__ import annotations

from rrpa_sidecar.frontend.batched.gate import Gate


class Intake:
    """Reads of one connection, in; turns, out."""

    __slots__ = ("_at", "_data", "_gate")

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._data = b""
        self._at = 0

    @property
    def waits(self) -> bool:
        """Whether there is more for another turn; nothing should be read until then."""
        return bool(self._data)

    def add(self, data: bytes) -> None:
        """Take a read."""
        self._data, self._at = self._data[self._at :] + data, 0

    def turn(self, now_s: float) -> bytes:
        """Return what is to be acted on now.

        Raises:
          Breach: see Gate.turn.
        """
        data, start = self._data, self._at
        self._at = self._gate.turn(data, start, now_s)
        if self._at < len(data):
            return data[start : self._at]
        self._data, self._at = b"", 0
        return data[start:] if start else data
