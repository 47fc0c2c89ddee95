"""An engine's table."""

from __future__ import annotations

import os
import random
import zlib

import pytest

from rrpa_sidecar.errors import CorruptLog, SegmentMissing, StreamMisuse
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import PlainDirectory, SegmentDirectory
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.table import TableReader, TableWriter
from tests.shm.support import Ids, slots_of, writer

NONCE = bytes(range(16))


def open_table(directory: SegmentDirectory, table: TableWriter) -> TableReader:
    return TableReader.open(directory, table.table_id, slots=table.slots, nonce=NONCE)


def test_a_poll_tells_the_slots_that_moved_and_only_once(
    directory: SegmentDirectory, ids: Ids
) -> None:
    table = TableWriter.create(directory, ids.new(), 512, NONCE)
    seen = open_table(directory, table)
    assert slots_of(seen.poll()) == []
    table.set(511, 1, False)
    table.set(0, 7, False)
    table.set(31, 0, True)
    assert slots_of(seen.poll()) == [0, 31, 511]
    assert seen.word(0) == (7, False)
    assert seen.word(31) == (0, True)
    assert slots_of(seen.poll()) == []
    table.set(0, 7, False)
    assert slots_of(seen.poll()) == []
    table.set(0, 7, True)
    assert slots_of(seen.poll()) == [0]
    table.close()
    seen.close()
    seen.close()


def test_a_log_moves_its_slot_and_an_empty_answer_does_too(
    directory: SegmentDirectory, ids: Ids
) -> None:
    table = TableWriter.create(directory, ids.new(), 4, NONCE)
    seen = open_table(directory, table)
    first = writer(directory, ids.new(), table=table, slot=2)
    assert slots_of(seen.poll()) == [2]
    first.write(b"")
    assert slots_of(seen.poll()) == []
    first.write(b"ab")
    assert slots_of(seen.poll()) == [2]
    assert seen.word(2) == (2, False)
    first.finish(End())
    assert slots_of(seen.poll()) == [2]
    assert seen.word(2) == (2, True)
    second = writer(directory, ids.new(), table=table, slot=2)
    assert slots_of(seen.poll()) == [2]
    assert seen.word(2) == (0, False)
    second.finish(End())
    assert slots_of(seen.poll()) == [2]
    assert seen.word(2) == (0, True)
    # From birth to end without a poll in between, at the same length: seen all the same.
    writer(directory, ids.new(), table=table, slot=2).finish(End())
    assert slots_of(seen.poll()) == [2]
    assert seen.word(2) == (0, True)
    table.close()
    seen.close()


def test_turns_of_a_slot_wrap_and_leave_its_neighbours_alone(plain: PlainDirectory) -> None:
    table = TableWriter.create(plain, "0" * 32, 2, NONCE)
    seen = open_table(plain, table)
    table.set(1, 9, True)
    for _ in range(layout.WORD_TURNS + 1):
        table.begin(0)
    assert slots_of(seen.poll()) == [0, 1]
    assert seen.word(0) == (0, False)
    table.begin(0)
    assert slots_of(seen.poll()) == [0]
    assert seen.word(1) == (9, True)
    with pytest.raises(StreamMisuse, match="of a table of 2"):
        table.begin(2)
    table.close()
    seen.close()


@pytest.mark.parametrize("slots", [1, 513, layout.MAX_SLOTS])
def test_no_store_to_a_table_meets_a_hole(
    directory: SegmentDirectory, ids: Ids, slots: int
) -> None:
    """On a file system that has become full that would be SIGBUS, and the engine's end (G25)."""
    table = TableWriter.create(directory, ids.new(), slots, NONCE)
    with open(f"{directory.path}/{layout.table_name(table.table_id)}", "rb") as file:
        size = layout.table_bytes(slots)
        assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == size
    table.unlink()
    table.close()


@pytest.mark.parametrize("slots", [1, 31, 32, 33, 8191, 8192, 8193, 65536])
def test_every_slot_of_every_size_is_seen(
    plain: PlainDirectory, seeded: random.Random, slots: int
) -> None:
    table = TableWriter.create(plain, "0" * 32, slots, NONCE)
    seen = open_table(plain, table)
    model = [(0, False)] * slots
    for _ in range(20):
        before = model.copy()
        for slot in [*seeded.sample(range(slots), min(slots, 5)), 0, slots - 1]:
            model[slot] = (seeded.getrandbits(20), seeded.random() < 0.5)
            table.set(slot, *model[slot])
        found = [pair for moves in seen.poll() for pair in moves.pairs]
        # A slot may have been set twice and be where it was.
        moved = [slot for slot in range(slots) if model[slot] != before[slot]]
        assert [slot for slot, _ in found] == moved
        assert all((word >> 1, bool(word & 1)) == model[slot] for slot, word in found)
        assert [seen.word(slot) for slot in moved] == [model[slot] for slot in moved]
    table.close()
    seen.close()


@pytest.mark.parametrize(("movers", "read"), [(3, False), (4, True), (128, True)])
@pytest.mark.parametrize("first", [0, 128, 256])
def test_each_slot_that_moved_with_enough_others_comes_with_its_own_tail(
    plain: PlainDirectory, first: int, movers: int, read: bool
) -> None:
    table = TableWriter.create(plain, "0" * 32, 384, NONCE)
    seen = open_table(plain, table)
    tails = {slot: b"%28d" % slot for slot in range(first, first + movers)}
    for slot, tail in tails.items():
        table.move(slot, 28 + slot, tail)
    (moves,) = seen.poll()
    assert moves.first == first
    assert [slot for slot, _ in moves.pairs] == [*tails]
    assert bool(moves.tails) is read
    for slot, tail in tails.items():
        at = (slot - first) * layout.TAIL_RECORD_BYTES
        record = moves.tails[at : at + layout.TAIL_RECORD_BYTES]
        checksum = zlib.crc32(tail, layout.HEADER_BYTES + 28 + slot).to_bytes(4, "little")
        assert not read or record == tail + checksum
    table.begin(first)
    assert table._lease.map[table._tails_at + first * 32 :][:32] == bytes(32), "of another log"
    table.close()
    table.move(first, 1, bytes(28))  # nothing happens
    seen.close()


@pytest.mark.parametrize("slots", [0, -1, 65537])
def test_a_table_has_1_to_65536_slots(plain: PlainDirectory, slots: int) -> None:
    with pytest.raises(StreamMisuse, match="1 to 65536 slots"):
        TableWriter.create(plain, "0" * 32, slots, NONCE)
    with pytest.raises(StreamMisuse):
        TableReader.open(plain, "0" * 32, slots=slots, nonce=NONCE)


@pytest.mark.parametrize("slot", [-1, 4])
def test_a_slot_outside_the_table_is_misuse(plain: PlainDirectory, slot: int) -> None:
    table = TableWriter.create(plain, "0" * 32, 4, NONCE)
    with pytest.raises(StreamMisuse, match="of a table of 4"):
        table.set(slot, 1, False)
    table.close()
    table.set(0, 1, False)


@pytest.mark.parametrize("nonce", [b"", bytes(15), bytes(17)])
def test_a_nonce_has_16_bytes(plain: PlainDirectory, nonce: bytes) -> None:
    with pytest.raises(StreamMisuse, match="16 bytes"):
        TableWriter.create(plain, "0" * 32, 4, nonce)
    assert plain.names() == []


def test_a_table_of_another_engine_is_refused(plain: PlainDirectory) -> None:
    table = TableWriter.create(plain, "0" * 32, 4, NONCE)
    with pytest.raises(CorruptLog, match="nonce"):
        TableReader.open(plain, "0" * 32, slots=4, nonce=bytes(16))
    with pytest.raises(CorruptLog, match="4 slots"):
        TableReader.open(plain, "0" * 32, slots=5, nonce=NONCE)
    with pytest.raises(CorruptLog, match="bytes, expected"):
        TableReader.open(plain, "0" * 32, slots=9000, nonce=NONCE)
    with pytest.raises(SegmentMissing):
        TableReader.open(plain, "1" * 32, slots=4, nonce=NONCE)
    table.close()


def test_a_log_is_not_a_table(plain: PlainDirectory) -> None:
    writer(plain, "0" * 32, stream_bytes=layout.table_bytes(4)).close()
    os.rename(f"{plain.path}/rrpa_{'0' * 32}", f"{plain.path}/rrpa_table_{'0' * 32}")
    with pytest.raises(CorruptLog, match="begins with"):
        TableReader.open(plain, "0" * 32, slots=4, nonce=NONCE)


def test_a_truncated_table_is_corrupt_and_no_signal(plain: PlainDirectory) -> None:
    table = TableWriter.create(plain, "0" * 32, 4, NONCE)
    seen = open_table(plain, table)
    os.truncate(f"{plain.path}/rrpa_table_{'0' * 32}", layout.HEADER_BYTES + 31)
    with pytest.raises(CorruptLog, match="truncated"):
        seen.poll()
    table.close()
    seen.close()


def test_a_table_says_who_owns_it_and_whether_its_engine_lives(plain: PlainDirectory) -> None:
    table = TableWriter.create(plain, "0" * 32, 4, NONCE)
    seen = open_table(plain, table)
    assert seen.owner == os.geteuid()
    assert not seen.writer_gone()
    table.close()
    assert seen.writer_gone()
    seen.close()
    table.unlink()
    table.unlink()
    assert plain.names() == []
