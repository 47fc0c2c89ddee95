"""Finds the place in a log at which a reader goes on that has so many bytes already."""

from __future__ import annotations

from rrpa_sidecar.errors import CorruptLog, OffsetOutOfRange
from rrpa_sidecar.stream.events import Event
from rrpa_sidecar.stream.progress import Progress
from rrpa_sidecar.stream.stream import FRAME_LIMIT_BYTES, StreamReader
from rrpa_sidecar.stream.text import LONGEST_CHARACTER_BYTES, whole_characters

CHUNK_BYTES = 64 * 1024


class Seeker:
    """A reader that is still on its way to `offset`. It delivers nothing.

    Offsets are counted after replacement, and only the text itself tells how many bytes were
    replaced before one; so the log is read from its start.
    """

    __slots__ = ("_at", "_passed", "_progress", "offset")
    replaced = 0
    unread_bytes = 0
    caught_up = True

    def __init__(self, progress: Progress, offset: int) -> None:
        self.offset = offset
        self._progress = progress
        self._at = 0  # raw bytes read
        self._passed = 0  # bytes of the answer that they stand for

    def poll(self, limit_bytes: int = FRAME_LIMIT_BYTES) -> Event | None:
        return None

    def advance(self, limit_bytes: int) -> StreamReader | None:
        """Read on, `limit_bytes` of the log at most; return the reader once its place is found.

        It begins with what is missing of a character, where the offset lies inside of one.

        Raises:
          OffsetOutOfRange: the answer has fewer bytes, now that all of it was read.
        """
        progress = self._progress
        progress.refresh()
        while self._passed < self.offset:
            pending = progress.committed - self._at
            if progress.broken is not None:
                break
            if limit_bytes <= 0:
                return None
            try:
                raw = progress.log.read(self._at, min(CHUNK_BYTES, pending))
            except CorruptLog as error:
                progress.spoil(error)
                break
            final = progress.final and len(raw) == pending
            cut = whole_characters(raw, final)
            if self._passed + len(cut.data) > self.offset:
                return self._inside(raw, final)
            if not cut.consumed:
                break
            self._at += cut.consumed
            self._passed += len(cut.data)
            limit_bytes -= cut.consumed
        if self._passed < self.offset and progress.broken is None:
            raise beyond(self.offset, self._passed)
        return StreamReader(progress, self.offset, self._at)

    def _inside(self, raw: bytes, final: bool) -> StreamReader:
        """Return the reader, whose place is inside of what the raw bytes from `_at` stand for."""
        at, passed, size = 0, self._passed, len(raw)
        while size > LONGEST_CHARACTER_BYTES:  # halves, as long as the place is beyond them
            size = max(size // 2, LONGEST_CHARACTER_BYTES)
            cut = whole_characters(raw[at : at + size], False)
            if passed + len(cut.data) <= self.offset:
                at += cut.consumed
                passed += len(cut.data)
        lead, size = b"", 0
        while passed < self.offset:  # then characters
            size += 1
            cut = whole_characters(raw[at : at + size], final and at + size >= len(raw))
            if cut.data:
                at, size = at + cut.consumed, 0
                passed += len(cut.data)
                lead = cut.data[len(cut.data) - (passed - self.offset) :]
        return StreamReader(self._progress, self.offset, self._at + at, lead)


def beyond(offset: int, size: int) -> OffsetOutOfRange:
    """Return the error for an offset that is greater than what the stream has, `size` bytes."""
    return OffsetOutOfRange(
        f"the stream has {size} bytes so far, fewer than the offset {offset}; resume with the"
        " number of bytes that you have"
    )
