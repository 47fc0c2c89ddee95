"""A segment born locked, and the lease that its writer keeps.

The lease is flock(LOCK_EX) on the file's open description. A description lives until its last
duplicate is closed, so two things could keep it alive behind our back:
- mmap duplicates the descriptor: `drop` unlocks before it closes.
- fork shares the description: the child closes its duplicates at once (an at-fork hook) and
  never unlocks, since LOCK_UN in a child would free the parent's lease. A fork made by C code
  without Python's hooks keeps the lease of a dead parent until that child execs or exits.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os

from rrpa_sidecar.errors import SegmentMissing, StreamMisuse
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import NO_ROOM, SegmentDirectory, shm_full

_ATTEMPTS = 3
Buffer = bytes | bytearray | memoryview
_held: set[Lease] = set()
"""Every lease of this process, for the at-fork hook."""


class Lease:
    """An open, locked, mapped segment of this process.

    fd: read and write, close-on-exec.
    map: the mapped part.
    words: the same as 64-bit words; one assignment is one aligned store.
    """

    __slots__ = ("_owner", "directory", "fd", "inode", "map", "name", "words")

    def __init__(
        self, directory: SegmentDirectory, name: str, fd: int, map_offset: int, map_bytes: int
    ) -> None:
        self.directory = directory
        self.name = name
        self.fd = fd
        self.inode = _inode(os.fstat(fd))
        self._owner = os.getpid()
        self.map = mmap.mmap(fd, map_bytes, offset=map_offset)
        self.words = memoryview(self.map).cast("Q")
        _held.add(self)

    @property
    def held(self) -> bool:
        return self.fd >= 0

    def drop(self) -> None:
        """Unlock, unmap and close. Idempotent. In a forked child: without unlocking."""
        if self.fd < 0:
            return
        fd, self.fd = self.fd, -1
        self.words.release()
        self.map.close()
        if os.getpid() == self._owner:
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)
        _held.discard(self)

    def unlink(self) -> None:
        """Remove the file if the name is still this inode. A missing file is fine."""
        with contextlib.suppress(FileNotFoundError, SegmentMissing):
            if _inode(os.lstat(f"{self.directory.path}/{self.name}")) == self.inode:
                self.directory.unlink(self.name)


def bear(
    directory: SegmentDirectory,
    name: str,
    size: int,
    header: bytes,
    map_offset: int = 0,
    map_bytes: int = layout.HEADER_USED_BYTES,
) -> Lease:
    """Create `name`, `size` bytes, beginning with `header`, locked before it can be seen.

    The mapped part must lie inside what `header` covers: a store to a hole of a full tmpfs
    is SIGBUS.

    Raises:
      ShmFull: no room; nothing is left behind.
      StreamMisuse: `name` exists already.

    Source: FORMAT.md, "Birth", steps 1 to 4.
    """
    temporary = layout.temporary_name(layout.id_of(name), os.getpid())
    fd = _create_locked(directory, temporary, size)
    try:
        lease = _mapped(directory, temporary, fd, header, map_offset, map_bytes)
        try:
            directory.rename(temporary, name)
        except BaseException:
            lease.drop()
            raise
    except BaseException as exc:
        with contextlib.suppress(SegmentMissing):
            directory.unlink(temporary)
        if isinstance(exc, FileExistsError):
            raise _exists(directory, name) from exc
        raise
    lease.name = name
    return lease


def pwrite_all(directory: SegmentDirectory, fd: int, data: Buffer, offset: int) -> None:
    """Write all of `data`; short writes are continued.

    Raises:
      ShmFull: no room; part of `data` may lie in the file, uncommitted.
    """
    try:
        done = os.pwrite(fd, data, offset)
        while done < len(data):
            done += os.pwrite(fd, data[done:], offset + done)
    except OSError as exc:
        if exc.errno in NO_ROOM:
            raise shm_full(directory, len(data)) from exc
        raise


def _create_locked(directory: SegmentDirectory, temporary: str, size: int) -> int:
    """Steps 1 and 2. Between them a cleaner may take the file for a dead one: begin again."""
    for _ in range(_ATTEMPTS):
        try:
            fd = directory.create(temporary, size)
        except FileExistsError as exc:
            raise _exists(directory, temporary) from exc
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink == 1:
                return fd
        except BlockingIOError:
            with contextlib.suppress(SegmentMissing):
                directory.unlink(temporary)
        os.close(fd)
    raise StreamMisuse(f"{temporary} in {directory.path} was removed {_ATTEMPTS} times at birth")


def _mapped(
    directory: SegmentDirectory, name: str, fd: int, header: bytes, offset: int, length: int
) -> Lease:
    """Step 3, then the mapping. Closes `fd` if either fails."""
    try:
        pwrite_all(directory, fd, header, 0)
        return Lease(directory, name, fd, offset, length)
    except BaseException:
        os.close(fd)
        raise


def _exists(directory: SegmentDirectory, name: str) -> StreamMisuse:
    return StreamMisuse(f"{name} in {directory.path} exists already; ids are used once")


def _inode(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _close_in_child() -> None:
    for lease in list(_held):
        lease.drop()


os.register_at_fork(after_in_child=_close_in_child)
