"""The directory that holds the segments: /dev/shm through posix_ipc, or any other by plain calls.

Both give descriptors that are close-on-exec, never follow a link at the last component, and
take nothing but names of segments, so that no id can leave the directory.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rrpa_sidecar.errors import CorruptLog, SegmentMissing, ShmFull, StartupError, StreamMisuse
from rrpa_sidecar.shm import layout

POSIX_PATH = "/dev/shm"
"""Where shm_open puts segments, by glibc and musl alike."""
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


@dataclass(frozen=True, slots=True)
class DirectoryIdentity:
    """What two processes compare to see whether they look at the same directory."""

    path: str
    st_dev: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class Space:
    """Room of the file system. Equal numbers: it has no limit but the machine's memory."""

    total_bytes: int
    free_bytes: int


class SegmentDirectory(Protocol):
    """Creates, opens, renames and unlinks segments. No call waits for another process."""

    path: str

    def create(self, name: str, size: int, mode: int = layout.FILE_MODE) -> int:
        """Create `name`, `size` bytes of holes; return a descriptor to read and write.

        Raises: FileExistsError, ShmFull, PermissionError.
        """
        ...

    def open(self, name: str, *, write: bool = False) -> int:
        """Return a descriptor of the regular file `name`.

        Raises: SegmentMissing, CorruptLog (not a regular file), PermissionError, OSError
          (`NO_DESCRIPTORS`: the process or the machine has too many files open).
        """
        ...

    def rename(self, old: str, new: str) -> None:
        """Give `old` its own name. Raises: SegmentMissing, FileExistsError."""
        ...

    def unlink(self, name: str) -> None:
        """Remove `name`. Raises: SegmentMissing, PermissionError."""
        ...

    def names(self) -> list[str]:
        """Return every name that begins with `rrpa_`, sorted; not all need be segments."""
        ...

    def identity(self) -> DirectoryIdentity: ...

    def space(self) -> Space: ...


def open_directory(path: str) -> SegmentDirectory:
    """Return the directory at `path`, checked.

    Raises:
      StartupError: missing, not a directory, or not writable for this process.
    """
    real = os.path.realpath(path)
    if not os.path.isdir(real):
        kind = "is not a directory" if os.path.lexists(path) else "does not exist"
        raise StartupError(
            f"shared-memory directory {path} {kind}; mount a memory-backed volume there"
        )
    if not os.access(real, os.R_OK | os.W_OK | os.X_OK):
        found = os.stat(real)
        raise StartupError(
            f"shared-memory directory {path} (owner {found.st_uid}:{found.st_gid}, mode"
            f" {stat.S_IMODE(found.st_mode):04o}) is not writable for {os.geteuid()}:"
            f"{os.getegid()}; mount it writable for the group that engines and sidecar share"
        )
    return PosixDirectory() if real == POSIX_PATH else PlainDirectory(real)


class PlainDirectory:
    """A directory reached by plain calls: a dedicated tmpfs, or a test's own."""

    def __init__(self, path: str) -> None:
        self.path = path

    def create(self, name: str, size: int, mode: int = layout.FILE_MODE) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        path = self._at(name)
        try:
            fd = os.open(path, flags, mode)
        except OSError as exc:
            self._raise_full(exc, size)
            raise
        try:
            os.ftruncate(fd, size)
            # The mode must not depend on whoever set this process's umask.
            os.fchmod(fd, mode)
        except OSError as exc:
            os.close(fd)
            os.unlink(path)
            self._raise_full(exc, size)
            raise
        return fd

    def open(self, name: str, *, write: bool = False) -> int:
        # O_NONBLOCK: a FIFO that somebody planted must not hold us.
        flags = os.O_RDWR if write else os.O_RDONLY
        flags |= os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._check_regular(name)
        try:
            return os.open(self._at(name), flags)
        except FileNotFoundError as exc:
            raise SegmentMissing(f"{self._at(name)} does not exist") from exc

    def rename(self, old: str, new: str) -> None:
        # Names are 128 random bits, so the target exists only by somebody's mistake. The look
        # before the rename leaves a gap; renameat2 would close it, but Python has no such call.
        if os.path.lexists(self._at(new)):
            raise FileExistsError(errno.EEXIST, "segment exists already", self._at(new))
        try:
            os.rename(self._at(old), self._at(new))
        except FileNotFoundError as exc:
            raise SegmentMissing(f"{self._at(old)} vanished before it was born") from exc

    def unlink(self, name: str) -> None:
        try:
            os.unlink(self._at(name))
        except FileNotFoundError as exc:
            raise SegmentMissing(f"{self._at(name)} does not exist") from exc

    def names(self) -> list[str]:
        return sorted(name for name in os.listdir(self.path) if name.startswith("rrpa_"))

    def identity(self) -> DirectoryIdentity:
        return DirectoryIdentity(self.path, os.stat(self.path).st_dev, _boot_id())

    def space(self) -> Space:
        found = os.statvfs(self.path)
        if found.f_blocks == 0:  # tmpfs mounted with size=0: no limit of its own
            memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            return Space(memory, memory)
        return Space(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def _at(self, name: str) -> str:
        if not layout.is_name(name):
            raise StreamMisuse(f"{name[:64]!r} is not the name of a segment")
        return f"{self.path}/{name}"

    def _check_regular(self, name: str) -> None:
        path = self._at(name)
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError as exc:
            raise SegmentMissing(f"{path} does not exist") from exc
        if not stat.S_ISREG(mode):
            raise CorruptLog(f"{path} is not a regular file (mode {mode:#o}); left alone")

    def _raise_full(self, exc: OSError, wanted: int) -> None:
        if exc.errno in NO_ROOM:
            raise shm_full(self, wanted) from exc


class PosixDirectory(PlainDirectory):
    """/dev/shm, through shm_open and shm_unlink.

    posix_ipc has no rename and no listing, so those stay plain calls on the same directory.
    """

    def __init__(self) -> None:
        super().__init__(POSIX_PATH)
        import posix_ipc  # here, so that engines with a directory of their own need no posix_ipc

        self._ipc = posix_ipc

    def create(self, name: str, size: int, mode: int = layout.FILE_MODE) -> int:
        self._at(name)
        try:
            segment = self._ipc.SharedMemory(
                "/" + name, flags=self._ipc.O_CREX, mode=mode, size=size
            )
        except self._ipc.ExistentialError as exc:
            raise FileExistsError(errno.EEXIST, "segment exists already", name) from exc
        except self._ipc.PermissionsError as exc:
            raise PermissionError(errno.EACCES, "may not create a segment", name) from exc
        except OSError as exc:
            self._raise_full(exc, size)
            raise _numbered(exc, name) from exc
        fd: int = segment.fd
        os.fchmod(fd, mode)
        return fd

    def open(self, name: str, *, write: bool = False) -> int:
        # shm_open on a FIFO waits for its other end, so the look comes first.
        self._check_regular(name)
        try:
            fd: int = self._ipc.SharedMemory("/" + name, read_only=not write).fd
        except self._ipc.ExistentialError as exc:
            raise SegmentMissing(f"{self._at(name)} does not exist") from exc
        except self._ipc.PermissionsError as exc:
            raise PermissionError(errno.EACCES, "may not open the segment", name) from exc
        except OSError as exc:
            raise _numbered(exc, name) from exc
        return fd

    def unlink(self, name: str) -> None:
        self._at(name)
        try:
            self._ipc.unlink_shared_memory("/" + name)
        except self._ipc.ExistentialError as exc:
            raise SegmentMissing(f"{self._at(name)} does not exist") from exc
        except self._ipc.PermissionsError as exc:
            raise PermissionError(errno.EPERM, "may not unlink the segment", name) from exc


def shm_full(directory: SegmentDirectory, wanted: int) -> ShmFull:
    """Return the error for ENOSPC, with the numbers."""
    space = directory.space()
    return ShmFull(
        f"shared memory {directory.path} is full: {space.free_bytes} of {space.total_bytes} bytes"
        f" free, {wanted} wanted; make the volume larger or the streams fewer (--shm-bytes)"
    )


def _numbered(exc: OSError, name: str) -> OSError:
    """Return `exc` with a number: posix_ipc 1.2 gives none when too many files are open."""
    if exc.errno is not None:
        return exc
    return OSError(errno.EMFILE, os.strerror(errno.EMFILE), name)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
