"""A log that a test writes."""

from __future__ import annotations

import os
import zlib

from rrpa_sidecar.errors import CorruptLog
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.end import End


class FakeLog:
    """A log in memory whose writer is the test."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("log")
        self.raw = b""
        self.end: End | None = None
        self.corrupt_progress: str | None = None
        self.corrupt_read: str | None = None
        self.reads: list[tuple[int, int]] = []
        self.looks = 0

    def __del__(self) -> None:
        os.close(self.fd)

    @property
    def raw(self) -> bytes:
        return self._raw

    @raw.setter
    def raw(self, raw: bytes) -> None:
        self._raw = raw
        os.ftruncate(self.fd, layout.HEADER_BYTES + len(raw))
        os.pwrite(self.fd, raw, layout.HEADER_BYTES)

    def word(self, turn: int = 1) -> int:
        """The table's word for it, as the engine stores it after each token."""
        return turn << layout.WORD_TURN_SHIFT | len(self.raw) << 1

    def tail(self) -> bytes:
        """The table's record of its last bytes, as the engine stores it before the word."""
        tail = self.raw[-layout.TAIL_BYTES :].rjust(layout.TAIL_BYTES, b"\0")
        checksum = zlib.crc32(tail, layout.HEADER_BYTES + len(self.raw))
        return tail + checksum.to_bytes(4, "little")

    def progress(self, promised_bytes: int = 0) -> tuple[int, End | None]:
        self.looks += 1
        if self.corrupt_progress:
            raise CorruptLog(self.corrupt_progress)
        if promised_bytes > len(self.raw):
            raise CorruptLog(f"promised {promised_bytes}")
        return len(self.raw), self.end

    def read(self, position: int, limit: int) -> bytes:
        if self.corrupt_read:
            raise CorruptLog(self.corrupt_read)
        self.reads.append((position, limit))
        return self.raw[position : position + limit]
