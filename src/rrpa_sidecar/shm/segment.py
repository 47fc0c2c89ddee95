"""What every reader of a segment does: open it, check it, read exactly, probe its lease."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
import zlib

from rrpa_sidecar.errors import CapacityExhausted, CorruptLog, SegmentMissing
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.descriptors import is_reserved, too_many
from rrpa_sidecar.shm.directory import NO_DESCRIPTORS, SegmentDirectory

_BIRTH = struct.Struct("<8sIIQ16s")


def open_segment(
    directory: SegmentDirectory, name: str, size: int | None, owner: int | None = None
) -> int:
    """Return a read-only descriptor of a regular file with one link and `size` bytes.

    size: None accepts any.
    owner: the uid it must have; None accepts any.

    Raises:
      SegmentMissing: it does not exist.
      CorruptLog: it is something else than that.
      CapacityExhausted: too many files are open, or nearly: some descriptors are kept in reserve.
    """
    try:
        fd = directory.open(name)
    except OSError as exc:  # a link (ELOOP), no permission
        if exc.errno in NO_DESCRIPTORS:
            raise CapacityExhausted(
                f"{name} cannot be opened now: {exc.strerror}; raise the limit (ulimit -n)"
            ) from exc
        raise CorruptLog(f"{name} cannot be opened: {exc.strerror}") from exc
    if is_reserved(fd):
        os.close(fd)
        raise too_many()
    found = os.fstat(fd)
    if found.st_nlink == 0:
        fault = "was removed while it was opened"
    elif not stat.S_ISREG(found.st_mode):
        fault = f"is not a regular file (mode {found.st_mode:#o})"
    elif found.st_nlink != 1:
        fault = f"has {found.st_nlink} links, expected 1"
    elif size is not None and found.st_size != size:
        fault = f"has {found.st_size} bytes, expected {size} (--stream-bytes)"
    elif owner is not None and found.st_uid != owner:
        fault = f"belongs to uid {found.st_uid}, expected {owner}, the owner of its table"
    else:
        _keep_access_time(fd)
        return fd
    os.close(fd)
    raise (SegmentMissing if found.st_nlink == 0 else CorruptLog)(f"{name} {fault}")


def _keep_access_time(fd: int) -> None:
    """Have reads of the file not touch its inode: 80 ns of a pread's 540 behind a busy writer.

    Only a file's owner may; for others it costs that.
    """
    with contextlib.suppress(PermissionError):
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NOATIME)


def read_exactly(fd: int, size: int, offset: int, name: str) -> bytes:
    """Return `size` bytes at `offset`.

    Raises:
      CorruptLog: the file ends before, or cannot be read.
    """
    try:
        data = os.pread(fd, size, offset)
    except OSError as exc:
        raise CorruptLog(f"{name} cannot be read at {offset}: {exc.strerror}") from exc
    if len(data) != size:
        raise CorruptLog(
            f"{name} is shorter than it was: {len(data)} of {size} bytes at {offset};"
            " somebody truncated it"
        )
    return data


def check_birth(header: bytes, magic: bytes, segment_id: str, size: int, name: str) -> None:
    """Check the fields that are written once.

    Raises:
      CorruptLog: naming the first that is wrong.
    """
    found_magic, version, header_bytes, file_bytes, found_id = _BIRTH.unpack_from(header)
    if found_magic != magic:
        fault = f"begins with {found_magic!r}, expected {magic!r}"
    elif version != layout.VERSION:
        fault = f"has format version {version}, this sidecar reads {layout.VERSION}"
    elif struct.unpack_from("<I", header, layout.BIRTH_CRC_OFFSET)[0] != zlib.crc32(
        header[: layout.BIRTH_CRC_OFFSET]
    ):
        fault = "has a wrong header checksum"
    elif header_bytes != layout.HEADER_BYTES or file_bytes != size:
        expected = f"{layout.HEADER_BYTES} and {size}"
        fault = f"says header {header_bytes} and size {file_bytes}, expected {expected}"
    elif found_id.hex() != segment_id:
        fault = f"holds id {found_id.hex()}"
    else:
        return
    raise CorruptLog(f"{name} {fault}")


def probe_unlocked(fd: int) -> bool:
    """Whether nobody holds the lease on `fd`'s file. Never waits.

    The probe takes the lock shared for about a microsecond. It cannot hinder a writer, which
    locks before its file has the name that readers open; a cleaner it hinders tries again.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True
