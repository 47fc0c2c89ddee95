"""What a reader refuses, and what it makes of a header caught in the middle."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from rrpa_sidecar.errors import CapacityExhausted, CorruptLog, SegmentMissing
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import PlainDirectory, SegmentDirectory
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.reader import LogReader
from rrpa_sidecar.shm.writer import LogWriter
from tests.faults.breaking import punch, regrow
from tests.harness.limits import too_many_open_files
from tests.shm.support import SMALL, Ids, path_of, poke, poke_cursor, reader, writer

CAPACITY = SMALL - layout.HEADER_BYTES


@pytest.fixture
def made(plain: PlainDirectory) -> Iterator[LogWriter]:
    made = writer(plain, "0" * 32)
    made.write(b"abcdef")
    yield made
    made.close()


def test_a_missing_log_is_missing(directory: SegmentDirectory, ids: Ids) -> None:
    with pytest.raises(SegmentMissing):
        reader(directory, ids.new())


def test_with_too_many_open_files_a_log_is_not_called_corrupt(
    directory: SegmentDirectory, ids: Ids
) -> None:
    made = writer(directory, ids.new())
    made.close()
    with too_many_open_files(), pytest.raises(CapacityExhausted, match="Too many open files"):
        reader(directory, made.stream_id)
    reader(directory, made.stream_id).close()


@pytest.mark.parametrize("kind", ["symlink", "dangling", "fifo", "directory"])
def test_what_is_no_regular_file_is_refused_without_waiting(
    directory: SegmentDirectory, ids: Ids, short_dir: Path, kind: str
) -> None:
    stream_id = ids.new()
    path = path_of(directory, stream_id)
    target = short_dir / "target"
    target.write_bytes(bytes(SMALL))
    if kind == "symlink":
        path.symlink_to(target)
    elif kind == "dangling":
        path.symlink_to(short_dir / "nowhere")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    try:
        with pytest.raises(CorruptLog, match="not a regular file"):
            reader(directory, stream_id)
    finally:
        path.rmdir() if kind == "directory" else path.unlink()
    assert target.stat().st_size == SMALL


def test_a_second_link_is_refused(plain: PlainDirectory, made: LogWriter) -> None:
    os.link(path_of(plain, made.stream_id), f"{plain.path}/other")
    with pytest.raises(CorruptLog, match="2 links, expected 1"):
        reader(plain, made.stream_id)


@pytest.mark.parametrize("size", [0, 4095, SMALL - 1, SMALL + 1, 2 * SMALL])
def test_another_size_is_refused(plain: PlainDirectory, made: LogWriter, size: int) -> None:
    os.truncate(path_of(plain, made.stream_id), size)
    with pytest.raises(CorruptLog, match=f"{size} bytes, expected {SMALL}"):
        reader(plain, made.stream_id)


@pytest.mark.parametrize("size", [layout.MIN_STREAM_BYTES, SMALL, layout.DEFAULT_STREAM_BYTES])
def test_a_log_of_any_legal_size_can_be_read_by_who_does_not_know_it(
    plain: PlainDirectory, size: int
) -> None:
    made = LogWriter.create(plain, "b" * 32, stream_bytes=size)
    made.write(b"abc")
    read = LogReader.open(plain, made.stream_id, stream_bytes=None)
    assert read.capacity_bytes == size - layout.HEADER_BYTES
    assert (read.progress(), read.read(0, 9)) == ((3, None), b"abc")
    read.close()
    made.close()


@pytest.mark.parametrize(
    "size", [0, SMALL - 1, SMALL + 1, layout.HEADER_BYTES, layout.MAX_STREAM_BYTES + SMALL]
)
def test_a_file_of_no_legal_size_is_refused(
    plain: PlainDirectory, made: LogWriter, size: int
) -> None:
    os.truncate(path_of(plain, made.stream_id), size)
    with pytest.raises(CorruptLog, match="no size of a log"):
        LogReader.open(plain, made.stream_id, stream_bytes=None)


def test_a_legal_size_that_is_not_the_logs_own_is_refused(
    plain: PlainDirectory, made: LogWriter
) -> None:
    larger = SMALL + layout.PAGE_BYTES
    os.truncate(path_of(plain, made.stream_id), larger)
    with pytest.raises(CorruptLog, match=f"size {SMALL}, expected 65536 and {larger}"):
        LogReader.open(plain, made.stream_id, stream_bytes=None)


def test_another_owner_than_the_tables_is_refused(plain: PlainDirectory, made: LogWriter) -> None:
    LogReader.open(plain, made.stream_id, stream_bytes=SMALL, owner=os.geteuid()).close()
    with pytest.raises(CorruptLog, match="belongs to uid"):
        LogReader.open(plain, made.stream_id, stream_bytes=SMALL, owner=os.geteuid() + 1)


@pytest.mark.parametrize("offset", [*range(60), 60, 63])
def test_each_byte_of_the_birth_fields_is_checked(
    plain: PlainDirectory, made: LogWriter, offset: int
) -> None:
    before = path_of(plain, made.stream_id).read_bytes()[offset]
    poke(plain, made.stream_id, offset, bytes([before ^ 0x10]))
    with pytest.raises(CorruptLog):
        reader(plain, made.stream_id)


def test_a_log_under_another_logs_name_is_refused(plain: PlainDirectory, made: LogWriter) -> None:
    os.rename(path_of(plain, made.stream_id), path_of(plain, "f" * 32))
    with pytest.raises(CorruptLog, match="holds id 0000"):
        reader(plain, "f" * 32)


def test_the_cursor_may_reach_the_capacity_and_not_pass_it(
    plain: PlainDirectory, made: LogWriter
) -> None:
    read = reader(plain, made.stream_id)
    poke_cursor(plain, made.stream_id, CAPACITY)
    assert read.progress() == (CAPACITY, None)
    poke_cursor(plain, made.stream_id, CAPACITY + 1)
    with pytest.raises(CorruptLog, match="not between"):
        read.progress()


def test_the_cursor_may_stay_and_not_go_back(plain: PlainDirectory, made: LogWriter) -> None:
    read = reader(plain, made.stream_id)
    assert read.progress() == (6, None)
    poke_cursor(plain, made.stream_id, 6)
    assert read.progress() == (6, None)
    poke_cursor(plain, made.stream_id, 5)
    with pytest.raises(CorruptLog, match="not between the last one, 6"):
        read.progress()


def test_a_writer_stopped_between_its_stores_keeps_the_last_good_cursor(
    plain: PlainDirectory, made: LogWriter
) -> None:
    read = reader(plain, made.stream_id)
    read.progress()
    poke_cursor(plain, made.stream_id, 6, twin=9)
    for _ in range(3):
        assert read.progress() == (6, None)
    assert not read.writer_gone()
    poke_cursor(plain, made.stream_id, 9)
    assert read.progress() == (9, None)


@pytest.mark.parametrize("lives", [True, False], ids=["stopped", "dead"])
def test_a_reader_that_comes_while_a_writer_stands_between_its_stores_has_all_it_committed(
    plain: PlainDirectory, made: LogWriter, lives: bool
) -> None:
    """Who comes back with an offset, and a sidecar that is new, know of no earlier cursor."""
    poke_cursor(plain, made.stream_id, 6, twin=9)
    if not lives:
        made.close()
    read = reader(plain, made.stream_id)
    assert read.progress() == (6, None)
    assert read.read(0, 100) == b"abcdef"
    assert read.writer_gone() is not lives
    assert read.progress() == (6, None)


@pytest.mark.parametrize(
    ("cursor", "twin"), [(6, 5), (6, CAPACITY + 1), (5, 9), (CAPACITY + 1, 9), (1 << 63, 1)]
)
def test_a_pair_that_no_writer_can_leave_is_corrupt(
    plain: PlainDirectory, made: LogWriter, cursor: int, twin: int
) -> None:
    read = reader(plain, made.stream_id)
    read.progress()
    poke_cursor(plain, made.stream_id, cursor, twin)
    for _ in range(2):
        with pytest.raises(CorruptLog, match="disagree"):
            read.progress()
    made.close()
    with pytest.raises(CorruptLog, match="disagree"):
        read.writer_gone()
    assert read.read(0, 100) == b"abcdef"


def test_a_torn_pair_that_heals_is_accepted_in_the_same_poll(
    plain: PlainDirectory, made: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = reader(plain, made.stream_id)
    real = os.pread
    torn = [struct.pack("<QQQQ", 6, 0, 0, 0), struct.pack("<QQQQ", 3, layout.U64_MAX ^ 6, 0, 0)]

    def pread(fd: int, size: int, offset: int) -> bytes:
        return torn.pop() if torn else real(fd, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    assert read.progress() == (6, None)
    assert torn == []


def test_the_end_never_overtakes_the_last_bytes(
    plain: PlainDirectory, made: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of the header may hold an old cursor beside a new state."""
    read = reader(plain, made.stream_id)
    real = os.pread
    armed = [True]

    def pread(fd: int, size: int, offset: int) -> bytes:
        if not armed:
            return real(fd, size, offset)
        armed.clear()
        cursor = real(fd, 16, offset)
        made.write(b" and the last bytes")
        made.finish(End(reason=1))
        return cursor + real(fd, size - 16, offset + 16)

    monkeypatch.setattr(os, "pread", pread)
    committed, end = read.progress()
    assert end == End(reason=1)
    assert read.read(0, 100) == b"abcdef and the last bytes"
    assert committed == 25


def test_a_final_log_that_is_changed_later_stays_as_it_was_read(
    plain: PlainDirectory, made: LogWriter
) -> None:
    read = reader(plain, made.stream_id)
    made.finish(End(reason=1))
    assert read.progress() == (6, End(reason=1))
    poke_cursor(plain, made.stream_id, 9)
    assert read.progress() == (6, End(reason=1))


@pytest.mark.parametrize("cursor", [5, 7])
def test_a_final_length_that_is_not_the_cursor_is_corrupt(
    plain: PlainDirectory, made: LogWriter, cursor: int
) -> None:
    made.finish(End())
    poke_cursor(plain, made.stream_id, cursor)
    with pytest.raises(CorruptLog, match="must agree"):
        reader(plain, made.stream_id).progress()


@pytest.mark.parametrize("offset", [256, 264, 268, 284, 288, 292, 296, 512, 2559, 2560, 3583])
def test_each_end_field_is_under_the_checksum(
    plain: PlainDirectory, made: LogWriter, offset: int
) -> None:
    made.finish(End(13, text="x" * 1024, stop_sequence=b"y" * 2048))
    poke(plain, made.stream_id, offset, b"\x99")
    with pytest.raises(CorruptLog, match="end checksum"):
        reader(plain, made.stream_id).progress()


@pytest.mark.parametrize("state", [2, 1 << 32, layout.U64_MAX])
def test_a_state_that_is_not_0_or_1_is_corrupt(
    plain: PlainDirectory, made: LogWriter, state: int
) -> None:
    poke(plain, made.stream_id, layout.STATE_OFFSET, struct.pack("<Q", state))
    with pytest.raises(CorruptLog, match=f"state {state}"):
        reader(plain, made.stream_id).progress()


def test_a_log_that_is_truncated_is_corrupt_and_no_signal(
    directory: SegmentDirectory, ids: Ids
) -> None:
    made = writer(directory, ids.new())
    made.write(b"abcdef")
    read = reader(directory, made.stream_id)
    read.progress()
    os.truncate(path_of(directory, made.stream_id), layout.HEADER_BYTES + 3)
    assert read.read(0, 3) == b"abc"
    with pytest.raises(CorruptLog, match="truncated"):
        read.read(0, 6)
    os.truncate(path_of(directory, made.stream_id), 100)
    with pytest.raises(CorruptLog, match="truncated"):
        read.progress()
    with pytest.raises(CorruptLog, match="truncated"):
        reader_gone(read, made)
    read.close()
    read.close()


def reader_gone(read: LogReader, made: LogWriter) -> None:
    # Unlocked by hand: the writer's own map must not be touched after the truncation.
    made.close()
    read.writer_gone()


def test_an_unlinked_log_is_read_to_its_end(directory: SegmentDirectory, ids: Ids) -> None:
    made = writer(directory, ids.new())
    read = reader(directory, made.stream_id)
    made.unlink()
    made.write(b"still here")
    made.finish(End())
    assert read.progress() == (10, End())
    assert read.read(0, 100) == b"still here"
    read.close()


def test_a_writer_is_gone_only_without_an_end(directory: SegmentDirectory, ids: Ids) -> None:
    lost, done = writer(directory, ids.new()), writer(directory, ids.new())
    lost_reader, done_reader = reader(directory, lost.stream_id), reader(directory, done.stream_id)
    assert not lost_reader.writer_gone()
    lost.write(b"tail")
    lost.close()
    done.finish(End())
    assert lost_reader.writer_gone()
    assert lost_reader.progress() == (4, None)
    assert not done_reader.writer_gone()
    assert done_reader.progress() == (0, End())
    assert not done_reader.writer_gone()
    lost_reader.close()
    done_reader.close()


@pytest.mark.parametrize("how", ["punch", "regrow"])
def test_hole_among_committed_bytes_is_corrupt_and_a_nul_of_the_writers_is_not(
    directory: SegmentDirectory, ids: Ids, how: str
) -> None:
    made = writer(directory, ids.new())
    made.write(b"\0" * 4096 + b"x" * 4096 + b"\0" * 4096)
    read = reader(directory, made.stream_id)
    committed, _ = read.progress()
    assert read.read(0, committed) == b"\0" * 4096 + b"x" * 4096 + b"\0" * 4096
    path = path_of(directory, made.stream_id)
    if how == "punch":
        punch(path, layout.HEADER_BYTES + 4096, 4096)
    else:
        regrow(path, layout.HEADER_BYTES + 4096)
    assert read.read(0, 4096) == b"\0" * 4096  # what is still there
    with pytest.raises(CorruptLog, match="hole"):
        read.read(4000, 200)
    read.close()
    made.close()
