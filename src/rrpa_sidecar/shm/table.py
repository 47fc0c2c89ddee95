"""An engine's table: the cursors of all its logs side by side, so that one read finds the movers.

A word is turn << 48 | committed_bytes << 1 | ended, where `turn` counts the logs that had the
slot. Without it, a short answer that ends where the one before it in its slot ended would leave
the word as it was, and nobody would look. Words are a hint at first; see `StreamReader.trust`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from itertools import compress
from operator import ne
from typing import NamedTuple, Self
from zlib import crc32

from rrpa_sidecar.clock import Clock, SystemClock
from rrpa_sidecar.errors import CorruptLog, StreamMisuse
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import SegmentDirectory
from rrpa_sidecar.shm.lease import Lease, bear
from rrpa_sidecar.shm.segment import check_birth, open_segment, probe_unlocked, read_exactly

_BIRTH = struct.Struct("<8sIIQ16sQI8x")
# Larger blocks compare faster when much moved, smaller ones when little did. One of 512 slots took
# 10, 16, 31 and 50 µs with blocks of 64, 128, 256 and 1,024; all of them, with their tails, 86, 77,
# 75 and 67; one of 65,536 took 300, 307, 176 and 149. CPU time, medians of 5 runs, 2 busy cores.
_BLOCK_SLOTS = 128
_TAILS_FROM = 4
"""Reading the tails of a block, 4 KiB, pays when it saves four reads of logs."""
_pack_tail = struct.Struct(f"<{layout.TAIL_BYTES}sI").pack_into
_NO_TAIL = bytes(layout.TAIL_RECORD_BYTES)


class Moves(NamedTuple):
    """Neighbouring slots of which some have moved."""

    first: int
    pairs: Iterator[tuple[int, int]]
    """(slot, word) of each that has, ascending; to be walked once. Not a list, because then each
    pair would be memory of its own, and cold when its turn comes."""
    tails: bytes
    """The tail records of all slots from `first` on, or nothing where few have moved. A record may
    belong to a later word than that of the pair, or be half stored: its checksum tells."""


def table_header(table_id: str, slots: int, nonce: bytes, created_ns: int) -> bytes:
    """Return the header of a table that has just been born."""
    if len(nonce) != layout.NONCE_BYTES:
        raise StreamMisuse(f"a table's nonce has {layout.NONCE_BYTES} bytes, not {len(nonce)}")
    birth = _BIRTH.pack(
        layout.TABLE_MAGIC,
        layout.VERSION,
        layout.HEADER_BYTES,
        layout.table_bytes(slots),
        bytes.fromhex(table_id),
        created_ns,
        slots,
    )
    header = bytearray(layout.HEADER_USED_BYTES)
    header[: len(birth)] = birth
    struct.pack_into("<I", header, layout.BIRTH_CRC_OFFSET, crc32(birth))
    header[layout.NONCE_OFFSET : layout.NONCE_OFFSET + len(nonce)] = nonce
    return bytes(header)


class TableWriter:
    """The engine's side. Slots are independent: one thread per slot is enough."""

    def __init__(self, lease: Lease, table_id: str, slots: int) -> None:
        self.table_id = table_id
        self.slots = slots
        self._lease = lease
        self._words = lease.words
        self._tails_at = layout.tails_offset(slots) - layout.HEADER_BYTES
        self._turns = [0] * slots
        self._goes_unused = False

    @classmethod
    def create(
        cls,
        directory: SegmentDirectory,
        table_id: str,
        slots: int,
        nonce: bytes,
        *,
        clock: Clock | None = None,
    ) -> Self:
        """Create the table `rrpa_table_<table_id>`, locked from its first moment.

        nonce: 16 random bytes that prove to the sidecar that both see one directory.

        Raises:
          ShmFull: no room; nothing is left behind.
          StreamMisuse: id, slots or nonce are illegal, or the table exists already.
        """
        name = layout.table_name(table_id)
        size = layout.table_bytes(slots)
        header = table_header(table_id, slots, nonce, (clock or SystemClock()).now_ns())
        # The zeros of the words are written, not left a hole: see `bear`.
        head = header + bytes(size - len(header))
        lease = bear(directory, name, size, head, layout.HEADER_BYTES, size - layout.HEADER_BYTES)
        return cls(lease, table_id, slots)

    def begin(self, slot: int) -> None:
        """Say that `slot` belongs to a new log. After `close`: nothing happens.

        Raises:
          StreamMisuse: there is no such slot.
        """
        self._check(slot)
        self._turns[slot] = (self._turns[slot] + 1) % layout.WORD_TURNS
        if self._lease.fd >= 0:
            at = self._tails_at + slot * layout.TAIL_RECORD_BYTES
            self._lease.map[at : at + layout.TAIL_RECORD_BYTES] = _NO_TAIL
        self.set(slot, 0, False)

    def set(self, slot: int, committed_bytes: int, ended: bool) -> None:
        """Say how far the log in `slot` is. After `close`: nothing happens.

        Raises:
          StreamMisuse: there is no such slot.
        """
        self._check(slot)
        if self._lease.fd >= 0:
            turn = self._turns[slot] << layout.WORD_TURN_SHIFT
            self._words[slot] = turn | committed_bytes << 1 | ended

    def move(self, slot: int, committed_bytes: int, tail: bytes) -> None:
        """Say how far the open log in `slot` is, and what its last bytes are.

        After `close`: nothing happens.

        tail: `layout.TAIL_BYTES`, with zeros before a log that is shorter.
        """
        lease = self._lease
        if lease.fd >= 0:
            checksum = crc32(tail, layout.HEADER_BYTES + committed_bytes)
            at = self._tails_at + slot * layout.TAIL_RECORD_BYTES
            _pack_tail(lease.map, at, tail, checksum)
            turn = self._turns[slot] << layout.WORD_TURN_SHIFT
            self._words[slot] = turn | committed_bytes << 1

    def close(self) -> None:
        """Drop the lease. Idempotent."""
        self._lease.drop()

    def __del__(self) -> None:
        # A forked child holds no lease, and so leaves its parent's file alone.
        if self._goes_unused and self._lease.held:
            self._lease.unlink()
        self._lease.drop()

    def unlink(self) -> None:
        """Remove the file. A missing file is fine."""
        self._lease.unlink()

    def unlink_when_unused(self) -> None:
        """Remove the file, and drop the lease, as soon as nobody refers to this object any more.

        Until then its file says that the engine is alive. The writers of logs refer to it while
        their logs are here, so no write can meet a table that is gone.
        """
        self._goes_unused = True

    def _check(self, slot: int) -> None:
        if not 0 <= slot < self.slots:
            raise StreamMisuse(f"slot {slot} of a table of {self.slots}")


class TableReader:
    """The sidecar's side; never maps.

    owner: uid of the file, which every log of the same engine must have too.
    """

    def __init__(self, fd: int, name: str, slots: int) -> None:
        self.slots = slots
        self.owner = os.fstat(fd).st_uid
        self._fd = fd
        self._name = name
        self._tails_at = layout.tails_offset(slots)
        self._last = bytes(slots * 8)

    @classmethod
    def open(cls, directory: SegmentDirectory, table_id: str, *, slots: int, nonce: bytes) -> Self:
        """Open the table and check that it is the one the engine speaks of.

        Raises:
          SegmentMissing: there is none in this directory.
          CorruptLog: it breaks a rule of FORMAT.md, or slots or nonce differ.
          CapacityExhausted: too many files are open; try again later.
        """
        name = layout.table_name(table_id)
        size = layout.table_bytes(slots)
        fd = open_segment(directory, name, size)
        try:
            header = read_exactly(fd, layout.HEADER_USED_BYTES, 0, name)
            check_birth(header, layout.TABLE_MAGIC, table_id, size, name)
            found_slots = struct.unpack_from("<I", header, 48)[0]
            found_nonce = header[layout.NONCE_OFFSET : layout.NONCE_OFFSET + layout.NONCE_BYTES]
            if found_slots != slots:
                raise CorruptLog(f"{name} has {found_slots} slots, expected {slots}")
            if found_nonce != nonce:
                raise CorruptLog(f"{name} holds another nonce than the engine says")
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, name, slots)

    def poll(self) -> list[Moves]:
        """Return where words changed since the last poll, ascending; never waits.

        A word that changed and changed back is not reported; a slot would need 65,536 logs
        between two polls for that.

        Raises:
          CorruptLog: the file became shorter.
        """
        now = read_exactly(self._fd, self.slots * 8, layout.HEADER_BYTES, self._name)
        last = self._last
        if now == last:
            return []
        self._last = now
        moves = []
        old, new = memoryview(last).cast("Q"), memoryview(now).cast("Q")
        for first in range(0, self.slots, _BLOCK_SLOTS):
            after = first + _BLOCK_SLOTS
            if last[8 * first : 8 * after] != now[8 * first : 8 * after]:
                words = new[first:after].tolist()
                differs = list(map(ne, words, old[first:after].tolist()))
                tails = self._tails(first, len(words)) if sum(differs) >= _TAILS_FROM else b""
                moves.append(Moves(first, compress(enumerate(words, first), differs), tails))
        return moves

    def _tails(self, first: int, count: int) -> bytes:
        size = layout.TAIL_RECORD_BYTES
        return read_exactly(self._fd, count * size, self._tails_at + first * size, self._name)

    def word(self, slot: int) -> tuple[int, bool]:
        """Return (committed_bytes, ended) of `slot` as the last poll saw it."""
        word = struct.unpack_from("<Q", self._last, slot * 8)[0]
        return word >> 1 & layout.WORD_COMMITTED_MASK, bool(word & 1)

    def turn(self, slot: int) -> int:
        """Return how many logs have had `slot`, modulo 65,536, as its word says now.

        Raises:
          CorruptLog: the file became shorter.
        """
        at = layout.HEADER_BYTES + slot * 8
        return _turn_of(struct.unpack("<Q", read_exactly(self._fd, 8, at, self._name))[0])

    def last_turn(self, slot: int) -> int:
        """Return the same as the last poll saw it."""
        return _turn_of(struct.unpack_from("<Q", self._last, slot * 8)[0])

    def writer_gone(self) -> bool:
        """Whether nobody holds the table's lease: the engine's process is gone."""
        return probe_unlocked(self._fd)

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _turn_of(word: int) -> int:
    return word >> layout.WORD_TURN_SHIFT
