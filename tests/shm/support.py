"""What the tests of shm share: ids, children, and stores behind the writer's back."""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import struct
import traceback
from collections.abc import Callable
from pathlib import Path

from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import SegmentDirectory
from rrpa_sidecar.shm.reader import LogReader
from rrpa_sidecar.shm.table import Moves, TableWriter
from rrpa_sidecar.shm.writer import LogWriter

SMALL = layout.MIN_STREAM_BYTES


class Ids:
    """Random ids, remembered so that their files can be removed."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def new(self) -> str:
        self.made.append(secrets.token_hex(16))
        return self.made[-1]

    def remove_from(self, path: str) -> None:
        for name in os.listdir(path):
            if any(made in name for made in self.made):
                with contextlib.suppress(IsADirectoryError):
                    os.unlink(f"{path}/{name}")


def writer(
    directory: SegmentDirectory,
    stream_id: str,
    *,
    stream_bytes: int = SMALL,
    table: TableWriter | None = None,
    slot: int = 0,
) -> LogWriter:
    return LogWriter.create(directory, stream_id, stream_bytes=stream_bytes, table=table, slot=slot)


def reader(directory: SegmentDirectory, stream_id: str, stream_bytes: int = SMALL) -> LogReader:
    return LogReader.open(directory, stream_id, stream_bytes=stream_bytes)


def path_of(directory: SegmentDirectory, stream_id: str) -> Path:
    return Path(directory.path, layout.log_name(stream_id))


def poke(directory: SegmentDirectory, stream_id: str, offset: int, data: bytes) -> None:
    """Change a log as a writer with a bug would."""
    with path_of(directory, stream_id).open("r+b") as file:
        file.seek(offset)
        file.write(data)


def poke_cursor(
    directory: SegmentDirectory, stream_id: str, cursor: int, twin: int | None = None
) -> None:
    """Store a cursor, and the complement of `twin` (of the cursor if None) beside it."""
    complement = layout.U64_MAX ^ (cursor if twin is None else twin)
    poke(directory, stream_id, layout.CURSOR_OFFSET, struct.pack("<QQ", cursor, complement))


def fork(work: Callable[[], object]) -> int:
    """Run `work` in a forked child and return its pid; the child exits 0, or 1 after an error."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    # What pytest's process has collected of gRPC's must not be finalized here, where none of its
    # threads are: a collection in the child would hang.
    gc.freeze()
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - a child must never return into pytest
        traceback.print_exc()
    finally:
        os._exit(code)


def exit_of(pid: int) -> int:
    """Wait for a child; return its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def slots_of(polled: list[Moves]) -> list[int]:
    """Return the slots of a table's poll without their words."""
    return [slot for moves in polled for slot, _ in moves.pairs]
