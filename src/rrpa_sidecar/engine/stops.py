"""Stop sequences over token boundaries: bytes in, (bytes to send, what matched) out. Pure.

The stop that completes first wins; of several that complete on the same byte, the longest.
So the answer depends on the text alone, never on how it was cut into tokens. Only bytes that
may still become a stop are held back.
"""

from __future__ import annotations

from collections.abc import Sequence

from rrpa_sidecar.errors import InvalidRequest
from rrpa_sidecar.shm import layout

MAX_STOPS = 32
MAX_STOP_BYTES = layout.STOP_LIMIT_BYTES
"""All stops of a request together: the work per token is bounded by it, and a matched stop must
fit the log's header (shm/FORMAT.md)."""


def checked_stops(sequences: Sequence[str]) -> tuple[str, ...]:
    """Return the stops of a request.

    Raises:
      InvalidRequest: an empty one, or more than the limits.
    """
    if len(sequences) > MAX_STOPS:
        raise InvalidRequest(f"{len(sequences)} stop_sequences; this engine takes {MAX_STOPS}")
    if not all(sequences):
        raise InvalidRequest("an empty stop sequence would match everywhere; leave it out")
    total = sum(len(stop.encode()) for stop in sequences)
    if total > MAX_STOP_BYTES:
        raise InvalidRequest(
            f"stop_sequences are {total} bytes together; this engine takes {MAX_STOP_BYTES}"
        )
    return tuple(sequences)


class StopFilter:
    """The stops of one answer."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [(stop.encode(), stop) for stop in stops]
        self._held = b""

    @property
    def held(self) -> bytes:
        """Bytes taken in and not yet given out."""
        return self._held

    def feed(self, token: bytes) -> tuple[bytes, str | None]:
        """Take the next token; return (bytes to send, the stop that matched or None).

        After a match the answer is over: what follows the stop is dropped.
        """
        if not self._stops:
            return token, None
        text = self._held + token
        match = self._first_match(text)
        if match is not None:
            start, stop = match
            self._held = b""
            return text[:start], stop
        keep = self._may_become(text)
        self._held = text[keep:]
        return text[:keep], None

    def flush(self) -> bytes:
        """Return what is still held: the answer ended and it became no stop."""
        held, self._held = self._held, b""
        return held

    def _first_match(self, text: bytes) -> tuple[int, str] | None:
        """Return (where it begins, the stop) of the match that ends first, longest of those."""
        best: tuple[int, int, str] | None = None
        for raw, stop in self._stops:
            start = text.find(raw)
            if start >= 0:
                found = (start + len(raw), start, stop)
                if best is None or found < best:
                    best = found
        return None if best is None else (best[1], best[2])

    def _may_become(self, text: bytes) -> int:
        """Return the first position from which `text` is the beginning of some stop."""
        keep = len(text)
        for raw, _ in self._stops:
            position = text.find(raw[:1], max(0, len(text) - len(raw) + 1), keep)
            while position >= 0:
                if raw.startswith(text[position:]):
                    keep = position
                    break
                position = text.find(raw[:1], position + 1, keep)
        return keep
