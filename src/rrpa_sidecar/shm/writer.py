"""The one writer of a log. Engines use it; one thread per writer."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Self

from rrpa_sidecar.clock import Clock, SystemClock
from rrpa_sidecar.errors import LogFull, StreamMisuse
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import SegmentDirectory
from rrpa_sidecar.shm.end import End, pack_end
from rrpa_sidecar.shm.lease import Lease, bear, pwrite_all
from rrpa_sidecar.shm.memory import Memory, own_memory

if TYPE_CHECKING:
    from rrpa_sidecar.shm.table import TableWriter

_CURSOR = layout.CURSOR_OFFSET // 8
_COMPLEMENT = layout.COMPLEMENT_OFFSET // 8
_STATE = layout.STATE_OFFSET // 8
_FIRST_COMMIT = layout.FIRST_COMMIT_OFFSET // 8
_TOKENS = layout.TOKENS_OFFSET // 8
_BIRTH = struct.Struct("<8sIIQ16sQ12x")
_MASK = layout.U64_MAX


def log_header(stream_id: str, stream_bytes: int, created_ns: int) -> bytes:
    """Return the first 4 KiB of a log that has just been born."""
    birth = _BIRTH.pack(
        layout.LOG_MAGIC,
        layout.VERSION,
        layout.HEADER_BYTES,
        stream_bytes,
        bytes.fromhex(stream_id),
        created_ns,
    )
    header = bytearray(layout.HEADER_USED_BYTES)
    header[: len(birth)] = birth
    struct.pack_into("<I", header, layout.BIRTH_CRC_OFFSET, zlib.crc32(birth))
    struct.pack_into("<Q", header, layout.COMPLEMENT_OFFSET, _MASK)
    return bytes(header)


class LogWriter:
    """Writes one stream's bytes; every call that returns has committed.

    The writer holds the log's lease until `finish` or `close`, or until its process dies. One
    that is forgotten without either is a lost writer, not a stalled one.

    Cost: 1.8 µs per write of 4 bytes with a table; see reader.py for the conditions.
    """

    def __init__(
        self,
        lease: Lease,
        stream_id: str,
        stream_bytes: int,
        table: TableWriter | None,
        slot: int,
        clock: Clock,
        memory: Memory,
    ) -> None:
        self.stream_id = stream_id
        self.committed_bytes = 0
        self.capacity_bytes = stream_bytes - layout.HEADER_BYTES
        self.tokens = 0
        self._lease = lease
        self._words = lease.words
        self._place = None if table is None else (table, slot)
        self._tail = bytes(layout.TAIL_BYTES)
        self._clock = clock
        self._memory = memory
        self._granted_bytes = layout.PAGE_BYTES  # `create` asked for them

    @classmethod
    def create(
        cls,
        directory: SegmentDirectory,
        stream_id: str,
        *,
        stream_bytes: int = layout.DEFAULT_STREAM_BYTES,
        table: TableWriter | None = None,
        slot: int = 0,
        clock: Clock | None = None,
        memory: Memory | None = None,
    ) -> Self:
        """Create the log `rrpa_<stream_id>`, locked from its first moment.

        stream_bytes: size of the file, header included.
        table, slot: where to say that this log grew; the slot is this log's from now on.
        memory: what bounds this process's memory; absent: its control groups do.

        Raises:
          ShmFull: no room in the directory, or too little memory; nothing is left behind.
          StreamMisuse: the id or the size is illegal, or the log exists already.
        """
        clock = clock or SystemClock()
        memory = memory or own_memory()
        layout.check_stream_bytes(stream_bytes)
        memory.take(layout.HEADER_USED_BYTES + layout.PAGE_BYTES)
        name = layout.log_name(stream_id)
        header = log_header(stream_id, stream_bytes, clock.now_ns())
        lease = bear(directory, name, stream_bytes, header)
        writer = cls(lease, stream_id, stream_bytes, table, slot, clock, memory)
        if table is not None:
            table.begin(slot)
        return writer

    def write(self, token: bytes) -> int:
        """Commit `token` and return the committed bytes. A token may be empty.

        Raises:
          LogFull, ShmFull: nothing of `token` is committed; the stream can still be finished.
          StreamMisuse: the log is finished or closed.
        """
        lease = self._lease
        if lease.fd < 0:
            raise self._closed("write")
        words = self._words
        start = self.committed_bytes
        size = len(token)
        if size:
            end = start + size
            if end > self.capacity_bytes:
                raise self._full(size)
            if end > self._granted_bytes:
                self._enter_pages(end)
            if not start:
                words[_FIRST_COMMIT] = self._clock.now_ns()
            pwrite_all(lease.directory, lease.fd, token, layout.HEADER_BYTES + start)
            # The pwrite above is the barrier between the data and these two stores; their own
            # order does not matter for safety, since a reader wants both to agree.
            words[_COMPLEMENT] = _MASK ^ end
            words[_CURSOR] = end
            self.committed_bytes = end
        self.tokens += 1
        words[_TOKENS] = self.tokens
        if size:
            # Kept without a table too: `move_to` may give one at any time.
            self._tail = tail = (self._tail[size:] + token)[-layout.TAIL_BYTES :]
            place = self._place
            if place is not None:
                # No barrier stands between the cursor and the table's word. A processor that shows
                # them in the other order does so for less than the 16 reads of a header that is
                # behind its word (reader.py), and the data was there before both.
                place[0].move(place[1], end, tail)
        return self.committed_bytes

    def finish(self, end: End) -> None:
        """Say how the stream ended and drop the lease.

        Raises:
          StreamMisuse: finished or closed before, or a number does not fit; in the latter
            case the log is still open.
        """
        if self._lease.fd < 0:
            raise self._closed("finish")
        fields = pack_end(end, self.committed_bytes)
        pwrite_all(self._lease.directory, self._lease.fd, fields, layout.END_OFFSET)
        self._words[_STATE] = layout.STATE_FINAL
        place = self._place
        if place is not None:
            place[0].set(place[1], self.committed_bytes, True)
        self.close()

    def move_to(self, table: TableWriter | None, slot: int = 0) -> None:
        """Say in `slot` of `table` from now on how this log grows; None: nowhere.

        Any one thread may call this while another one writes. What that commits meanwhile may
        be said in the old place alone, and then the sidecar's sweep finds it. Nothing is stored
        in the old table once the write that runs has returned; a table that no writer and
        nobody else refers to any more drops its lease.

        Raises:
          StreamMisuse: there is no such slot; the log stays where it was.
        """
        if table is not None:
            table.begin(slot)
        # One store, after the new place is ready: `write` sees the old pair or the new one.
        self._place = None if table is None else (table, slot)

    def close(self) -> None:
        """Drop the lease. Without `finish` before it, readers see a lost writer. Idempotent."""
        self._lease.drop()
        self._place = None

    def __del__(self) -> None:
        self._lease.drop()

    def unlink(self) -> None:
        """Remove the file, before or after closing. A missing file is fine."""
        self._lease.unlink()

    def _enter_pages(self, end: int) -> None:
        """Ask for memory of the pages up to `end`: at a limit the kernel kills, see `Memory`."""
        wanted = -(-end // layout.PAGE_BYTES) * layout.PAGE_BYTES
        self._memory.take(wanted - self._granted_bytes)
        self._granted_bytes = wanted

    def _full(self, wanted: int) -> LogFull:
        return LogFull(
            f"log is full: {self.committed_bytes} of {self.capacity_bytes} bytes used,"
            f" {wanted} wanted; end the stream, or raise --stream-bytes"
            f" (now {self.capacity_bytes + layout.HEADER_BYTES})"
        )

    def _closed(self, call: str) -> StreamMisuse:
        return StreamMisuse(f"{call} on log {self.stream_id}, which is finished or closed")
