"""A log that moves from one table to another, while it is written and between two writes."""

from __future__ import annotations

import gc
import os
import struct
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from rrpa_sidecar.errors import StreamMisuse
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import PlainDirectory
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.table import TableWriter
from tests.shm.support import Ids, exit_of, fork, reader, writer

SLOTS = 5
MOVES = 1000
TAILS = 50
"""Looked at while right, at least."""
STREAM_BYTES = 64 << 20


def table(directory: PlainDirectory, ids: Ids, slots: int = SLOTS) -> TableWriter:
    return TableWriter.create(directory, ids.new(), slots, bytes(16))


def part(directory: PlainDirectory, of: TableWriter, offset: int, size: int) -> bytes:
    with (Path(directory.path) / f"rrpa_table_{of.table_id}").open("rb") as file:
        return os.pread(file.fileno(), size, offset)


def word_of(directory: PlainDirectory, of: TableWriter, slot: int) -> tuple[int, int, bool]:
    """Return (turn, committed bytes, ended) as the file has them."""
    word = struct.unpack("<Q", part(directory, of, layout.HEADER_BYTES + 8 * slot, 8))[0]
    return (
        word >> layout.WORD_TURN_SHIFT,
        word >> 1 & layout.WORD_COMMITTED_MASK,
        bool(word & 1),
    )


def tail_of(directory: PlainDirectory, of: TableWriter, slot: int) -> tuple[bytes, int]:
    """Return (tail, checksum) as the file has them."""
    at = layout.tails_offset(of.slots) + slot * layout.TAIL_RECORD_BYTES
    raw = part(directory, of, at, layout.TAIL_RECORD_BYTES)
    return raw[: layout.TAIL_BYTES], struct.unpack_from("<I", raw, layout.TAIL_BYTES)[0]


def checksum(tail: bytes, committed_bytes: int) -> int:
    return zlib.crc32(tail, layout.HEADER_BYTES + committed_bytes)


def mapped(of: TableWriter | str) -> bool:
    table_id = of if isinstance(of, str) else of.table_id
    return table_id in Path("/proc/self/maps").read_text()


def test_words_and_end_go_to_the_new_place_and_no_more_to_the_old(
    plain: PlainDirectory, ids: Ids
) -> None:
    old, new = table(plain, ids), table(plain, ids)
    log = writer(plain, ids.new(), table=old, slot=4)
    log.write(b"abc")
    log.move_to(new, 2)
    assert word_of(plain, new, 2) == (1, 0, False), "its turn, and nothing that promises"
    log.write(b"de")
    assert word_of(plain, new, 2) == (1, 5, False)
    log.finish(End())
    assert word_of(plain, new, 2) == (1, 5, True)
    assert word_of(plain, old, 4) == (1, 3, False)
    old.close()
    new.close()


def test_tail_is_right_after_a_time_without_a_table(plain: PlainDirectory, ids: Ids) -> None:
    old, new = table(plain, ids), table(plain, ids)
    log = writer(plain, ids.new(), table=old)
    log.write(b"0123456789" * 3)
    log.move_to(None)
    log.write(b"unsaid")
    assert word_of(plain, old, 0) == (1, 30, False)
    log.move_to(new, 1)
    assert tail_of(plain, new, 1) == (bytes(28), 0)
    log.write(b"!")
    expected = (b"0123456789" * 3 + b"unsaid!")[-28:]
    assert tail_of(plain, new, 1) == (expected, checksum(expected, 37))
    for each in (log, old, new):
        each.close()


def test_slot_that_the_table_has_not_leaves_the_log_where_it_was(
    plain: PlainDirectory, ids: Ids
) -> None:
    old, new = table(plain, ids), table(plain, ids, slots=2)
    log = writer(plain, ids.new(), table=old, slot=4)
    with pytest.raises(StreamMisuse, match="slot 2 of a table of 2"):
        log.move_to(new, 2)
    log.write(b"a")
    assert word_of(plain, old, 4) == (1, 1, False)
    for each in (log, old, new):
        each.close()


def test_table_goes_when_the_last_log_has_left_it(plain: PlainDirectory, ids: Ids) -> None:
    old, new = table(plain, ids), table(plain, ids)
    logs = [writer(plain, ids.new(), table=old, slot=slot) for slot in range(4)]
    old_id = old.table_id
    del old
    logs[0].move_to(new, 0)
    logs[1].move_to(None)
    logs[2].finish(End())
    assert mapped(old_id)
    logs[3].close()
    assert not mapped(old_id)
    for log in logs:
        log.close()
    new.close()


def test_file_of_an_unused_table_goes_too_but_not_from_a_forked_child(
    plain: PlainDirectory, ids: Ids
) -> None:
    made = table(plain, ids)
    made.unlink_when_unused()
    log = writer(plain, ids.new(), table=made)
    name = f"rrpa_table_{made.table_id}"
    del made

    def leave() -> None:
        log.close()
        gc.collect()

    assert exit_of(fork(leave)) == 0
    assert name in plain.names()
    log.close()
    assert name not in plain.names()


@pytest.fixture
def impatient() -> Iterator[None]:
    """Threads take turns within a write."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("impatient")
def test_log_moves_at_any_moment_of_a_write(
    memory: PlainDirectory, ids: Ids, seeded: Random
) -> None:
    """No word is ahead of its log or in a slot of another, every tail that fits its word is
    right, and no write meets a table that is gone."""
    text = seeded.randbytes(1 << 20)
    stream_id = ids.new()
    log = writer(memory, stream_id, stream_bytes=STREAM_BYTES)
    seen = reader(memory, stream_id, STREAM_BYTES)
    faults: list[BaseException] = []
    done = threading.Event()

    def said(begin: int, end: int) -> bytes:
        """Return these bytes of the text that goes round."""
        begin, size = begin % len(text), end - begin
        return (text[begin:] + text)[:size] if begin + size > len(text) else text[begin:][:size]

    def write(random: Random) -> None:
        at = 0
        try:
            while not done.is_set() and at + 40 < log.capacity_bytes:
                size = random.randrange(40)
                log.write(said(at, at + size))
                at += size
            log.finish(End())
        except BaseException as exc:  # noqa: BLE001 - the test's own thread raises it
            faults.append(exc)

    thread = threading.Thread(target=write, args=(Random(seeded.randrange(1 << 32)),))
    thread.start()
    place, used = table(memory, ids), set[int]()
    moves = checked = 0
    while (moves < MOVES or checked < TAILS) and thread.is_alive():
        moves += 1
        what = seeded.randrange(4)
        if what == 0:
            log.move_to(None)
        elif what == 1:
            place.unlink()
            place, used = table(memory, ids), set()
        if what:
            slot = seeded.randrange(SLOTS)
            used.add(slot)
            log.move_to(place, slot)
        for slot in range(SLOTS):
            turn, committed, _ = word_of(memory, place, slot)
            tail, crc = tail_of(memory, place, slot)
            assert slot in used or (turn, committed) == (0, 0)
            size, _ = seen.progress()
            assert committed <= size
            if committed and checksum(tail, committed) == crc:
                assert tail == said(max(0, committed - 28), committed).rjust(28, b"\0")
                checked += 1
    done.set()
    thread.join(10)
    if faults:
        raise faults[0]
    size, end = seen.progress()
    assert end is not None
    assert size == log.committed_bytes > 0
    assert moves >= MOVES
    assert checked >= TAILS
    assert all(seen.read(at, 4096) == said(at, min(at + 4096, size)) for at in range(0, size, 4096))
    seen.close()
    assert [each for each in ids.made if mapped(each)] == [place.table_id]
    place.close()
