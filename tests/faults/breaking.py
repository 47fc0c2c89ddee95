"""Ways to break a segment from outside, as a bug, a rival or an attacker would."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rrpa_sidecar.shm import layout

PUNCH_AND_KEEP_SIZE = 3
U64 = layout.U64_MAX
_libc = ctypes.CDLL(None, use_errno=True)


def punch(path: Path, offset: int, size: int) -> None:
    """Make a hole; the file's size stays."""
    fd = os.open(path, os.O_RDWR)
    try:
        at, length = ctypes.c_int64(offset), ctypes.c_int64(size)
        if _libc.fallocate(fd, PUNCH_AND_KEEP_SIZE, at, length):
            raise OSError(ctypes.get_errno(), "fallocate")
    finally:
        os.close(fd)


def poke(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def poke_cursor(path: Path, cursor: int, twin: int | None = None) -> None:
    """Store a cursor, and beside it the complement of `twin`, of the cursor if None."""
    pair = struct.pack("<QQ", cursor, U64 ^ (cursor if twin is None else twin))
    poke(path, layout.CURSOR_OFFSET, pair)


def poke_birth(path: Path, offset: int, data: bytes) -> None:
    """Change a field of the birth, with a right checksum."""
    header = bytearray(path.read_bytes()[: layout.BIRTH_CRC_OFFSET])
    header[offset : offset + len(data)] = data
    poke(path, 0, bytes(header) + struct.pack("<I", zlib.crc32(header)))


def regrow(path: Path, kept: int) -> None:
    size = path.stat().st_size
    os.truncate(path, kept)
    os.truncate(path, size)


def put(path: Path, make: Callable[[Path], object]) -> None:
    """Put something else in the file's place, in one step."""
    other = path.with_name("other-" + path.name)
    make(other)
    os.rename(other, path)


def put_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def put_socket(path: Path) -> None:
    path.unlink()
    here = os.getcwd()
    os.chdir(path.parent)  # the whole path may be too long for a socket
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def zeros(path: Path) -> None:
    path.write_bytes(bytes(131072))


def link_elsewhere(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def copy_with_other_id(path: Path) -> None:
    whole = bytearray(path.read_bytes())

    def make(other: Path) -> None:
        other.write_bytes(whole)
        poke_birth(other, 24, bytes(16))

    put(path, make)


@dataclass(frozen=True, slots=True)
class Break:
    """One way. `before`, `after`: what it does to a log that the sidecar has not, or has, seen.

    True: that stream ends with DATA_LOSS. False: nothing is lost, since whoever has a file open
    keeps it. None: not a case.
    """

    name: str
    do: Callable[[Path], object]
    before: bool | None = True
    after: bool | None = True


HALF = layout.HEADER_BYTES + 1
BREAKS = (
    Break("truncated in its data", lambda p: os.truncate(p, HALF)),
    Break("truncated in its header", lambda p: os.truncate(p, 140)),
    Break("truncated to nothing", lambda p: os.truncate(p, 0)),
    Break("regrown from nothing", lambda p: regrow(p, 0)),
    Break("regrown from its birth", lambda p: regrow(p, 64)),
    Break("grown", lambda p: os.truncate(p, p.stat().st_size + 65536), after=False),
    Break("punched in its header", lambda p: punch(p, 0, 4096)),
    Break("punched in its data", lambda p: punch(p, layout.HEADER_BYTES, 4096), after=None),
    Break("unlinked", os.unlink, after=False),
    Break("replaced by zeros", lambda p: put(p, zeros), after=False),
    Break("replaced by another log", copy_with_other_id, after=False),
    Break("replaced by a link", lambda p: put(p, link_elsewhere), after=False),
    Break("replaced by a fifo", lambda p: put(p, os.mkfifo), after=False),
    Break("replaced by a directory", put_directory, after=False),
    Break("replaced by a socket", put_socket, after=False),
    Break("linked twice", lambda p: os.link(p, p.with_name("link-" + p.name)), after=False),
    Break("owned by another", lambda p: os.chown(p, 12345, -1), after=False),
    Break("unreadable", lambda p: poke(p, 0, b"RRPALOX\0"), after=False),
    Break("of another version", lambda p: poke_birth(p, 8, b"\x02\0\0\0"), after=False),
    Break("of another size, it says", lambda p: poke_birth(p, 16, b"\0\0\0\1"), after=False),
    Break("of a wrong birth checksum", lambda p: poke(p, 40, b"?" * 8), after=False),
    Break("of a garbage header", lambda p: poke(p, 0, bytes(range(256)) * 16)),
    Break("back at 0", lambda p: poke_cursor(p, 0), before=None),
    Break("beyond its end", lambda p: poke_cursor(p, 1 << 60)),
    Break("one byte beyond its end", lambda p: poke_cursor(p, p.stat().st_size - 65536 + 1)),
    Break("of a bad complement", lambda p: poke_cursor(p, 5, 3)),
    Break("of an unknown state", lambda p: poke(p, layout.STATE_OFFSET, b"\x07" + bytes(7))),
    Break("final without an end", lambda p: poke(p, layout.STATE_OFFSET, b"\x01" + bytes(7))),
)  # fmt: skip
