"""Removes the segments of streams that are over, and never a live one."""

from __future__ import annotations

import fcntl
import os
import stat
from enum import Enum, auto

from rrpa_sidecar.errors import CorruptLog, SegmentMissing
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import NO_DESCRIPTORS, SegmentDirectory
from rrpa_sidecar.shm.segment import open_segment, probe_unlocked

BLOCK_BYTES = 512
"""Unit of `st_blocks`, whatever the file system's own blocks are."""


class Reclaim(Enum):
    """What became of a segment."""

    REMOVED = auto()
    HELD = auto()
    """A live writer, or another cleaner, holds the lock. Try again later."""
    MISSING = auto()
    FOREIGN = auto()
    """Not a segment, or the name is another file by now. Left alone."""
    DENIED = auto()
    """The directory or the file's mode forbids it: the owner has to unlink."""


def reclaim(directory: SegmentDirectory, name: str) -> Reclaim:
    """Unlink `name` if it is one of our segments and no writer holds it. Never waits.

    An unlocked segment is final or lost, since segments are born locked. When that was long
    enough ago is the caller's to know. Never truncates: readers keep what they have open.

    Raises:
      OSError: too many files are open; try again later.

    Source: FORMAT.md, "Reclaim".
    """
    if not layout.is_name(name):
        return Reclaim.FOREIGN
    try:
        fd = directory.open(name)
    except SegmentMissing:
        return Reclaim.MISSING
    except CorruptLog:
        return Reclaim.FOREIGN
    except PermissionError:
        return Reclaim.DENIED
    except OSError as exc:
        if exc.errno in NO_DESCRIPTORS:
            raise  # it says nothing about the file: as FOREIGN it would stay for ever
        return Reclaim.FOREIGN
    try:
        return _reclaim_open(directory, name, fd)
    finally:
        os.close(fd)


def abandoned_bytes(directory: SegmentDirectory, name: str) -> int | None:
    """Return the memory that `name` holds if `reclaim` could remove it now, None if it could not.

    Never waits, and changes nothing.

    Raises:
      CapacityExhausted: too many files are open; try again later.
      StreamMisuse: `name` is not the name of a segment.
    """
    try:
        fd = open_segment(directory, name, None)
    except (SegmentMissing, CorruptLog):
        return None
    try:
        if not _ours(fd, name) or not probe_unlocked(fd):
            return None
        return os.fstat(fd).st_blocks * BLOCK_BYTES
    finally:
        os.close(fd)


def _reclaim_open(directory: SegmentDirectory, name: str, fd: int) -> Reclaim:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return Reclaim.HELD
    # From here to the unlink nobody can take the lock.
    found = os.fstat(fd)
    if found.st_nlink == 0:
        return Reclaim.MISSING
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or not _ours(fd, name):
        return Reclaim.FOREIGN
    try:
        there = os.lstat(f"{directory.path}/{name}")
        if (there.st_dev, there.st_ino) != (found.st_dev, found.st_ino):
            return Reclaim.FOREIGN
        directory.unlink(name)
    except (FileNotFoundError, SegmentMissing):
        return Reclaim.MISSING
    except OSError:  # EPERM in a sticky directory, EACCES, EROFS
        return Reclaim.DENIED
    return Reclaim.REMOVED


def _ours(fd: int, name: str) -> bool:
    """Whether the file says that it is what its name says.

    Magic, id and lock are the same in every version of the format, so cleaners of one version
    may take the files of another. A writer may die before its header: then all is zero.
    """
    head = os.pread(fd, 40, 0)
    if layout.is_temporary(name) and head.strip(b"\0") == b"":
        return True
    return head[:8] in layout.magics_of(name) and head[24:40].hex() == layout.id_of(name)
