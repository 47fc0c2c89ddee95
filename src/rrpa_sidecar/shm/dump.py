"""Prints a segment for people: python -m rrpa_sidecar.shm.dump FILE

Exit code 0: a sound segment. 1: not a segment, or unreadable. 2: no file named.
3: a segment that breaks a rule of FORMAT.md; the rule is the last line.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
from collections.abc import Iterator

from rrpa_sidecar.errors import CorruptLog
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.reader import LogReader
from rrpa_sidecar.shm.segment import check_birth, probe_unlocked, read_exactly

_PREVIEW_BYTES = 64
_KINDS = {layout.LOG_MAGIC: "log", layout.TABLE_MAGIC: "table"}


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print("usage: python -m rrpa_sidecar.shm.dump FILE", file=sys.stderr)
        return 2
    path = argv[0]
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as exc:
        print(f"{path}: cannot be opened: {exc.strerror}", file=sys.stderr)
        return 1
    try:
        fault = _not_a_segment(fd)
        if fault:
            print(f"{path}: neither a log nor a table: {fault}", file=sys.stderr)
            return 1
        for line in describe(fd, path):
            print(line)
    except CorruptLog as exc:
        print(f"broken rule: {exc}")
        return 3
    finally:
        os.close(fd)
    return 0


def describe(fd: int, path: str) -> Iterator[str]:
    """Yield the lines about the segment behind `fd`.

    Raises:
      CorruptLog: after the lines that could still be told.
    """
    size = os.fstat(fd).st_size
    header = read_exactly(fd, layout.HEADER_USED_BYTES, 0, path)
    kind = _KINDS[header[:8]]
    yield f"{kind} {path}"
    yield f"lease {'free' if probe_unlocked(fd) else 'held by its writer'}"
    fields = layout.LOG_FIELDS if kind == "log" else layout.TABLE_FIELDS
    yield from (f"{f.offset:6} {f.name:20} {_value(header, f)}" for f in fields)
    check_birth(header, header[:8], header[24:40].hex(), size, path)
    yield from _log(fd, path, size) if kind == "log" else _table(fd, path, header)


def _log(fd: int, path: str, size: int) -> Iterator[str]:
    reader = LogReader(os.dup(fd), path, size - layout.HEADER_BYTES)
    try:
        committed, end = reader.progress()
        if end is None and reader.writer_gone():
            committed, end = reader.progress()
            yield "state  lost: the writer is gone and said no end"
        yield f"data   {committed} of {reader.capacity_bytes} bytes committed"
        if end is not None:
            yield f"end    {_end(end)}"
        first = reader.read(0, _PREVIEW_BYTES)
        last = reader.read(max(0, committed - _PREVIEW_BYTES), _PREVIEW_BYTES)
        yield f"first  {first!r}"
        yield f"last   {last!r}"
    finally:
        reader.close()


def _table(fd: int, path: str, header: bytes) -> Iterator[str]:
    slots = struct.unpack_from("<I", header, 48)[0]
    words = struct.unpack(f"<{slots}Q", read_exactly(fd, slots * 8, layout.HEADER_BYTES, path))
    used = [(slot, word) for slot, word in enumerate(words) if word]
    yield f"words  {len(used)} of {slots} are not zero"
    for slot, word in used:
        turn, ended = word >> layout.WORD_TURN_SHIFT, ", ended" if word & 1 else ""
        committed_bytes = word >> 1 & layout.WORD_COMMITTED_MASK
        yield f"{slot:6} log {turn} of this slot: {committed_bytes} bytes{ended}"


def _end(end: End) -> str:
    return " ".join(f"{name}={getattr(end, name)!r}" for name in End.__dataclass_fields__)


def _value(header: bytes, field: layout.Field) -> str:
    raw = header[field.offset : field.offset + field.size]
    if not field.kind.startswith("bytes"):
        number = int.from_bytes(raw, "little")
        return f"{number:#010x}" if "crc" in field.name else str(number)
    if field.name in ("stop_sequence", "text", "magic"):
        return repr(raw.rstrip(b"\0"))
    return raw.hex()


def _not_a_segment(fd: int) -> str | None:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        return f"not a regular file (mode {found.st_mode:#o})"
    magic = os.pread(fd, 8, 0)
    if magic not in _KINDS:
        return f"it begins with {magic!r}"
    return None


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
