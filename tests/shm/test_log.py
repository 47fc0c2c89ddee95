"""A log: what is written is read, up to its edges."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rrpa_sidecar.errors import LogFull, StreamMisuse
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import PlainDirectory, SegmentDirectory
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.writer import LogWriter
from tests.shm.support import SMALL, Ids, path_of, reader, writer

CAPACITY = SMALL - layout.HEADER_BYTES


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=300), max_size=40), st.integers(1, 500))
def test_what_is_written_in_tokens_is_read_in_any_pieces(tokens: list[bytes], limit: int) -> None:
    with tempfile.TemporaryDirectory(prefix="rrpa-", dir="/tmp") as path:
        directory = PlainDirectory(path)
        written = writer(directory, "0" * 32)
        read = reader(directory, "0" * 32)
        got = b""
        for token in tokens:
            written.write(token)
            committed, end = read.progress()
            assert (committed, end) == (written.committed_bytes, None)
            got += read.read(len(got), limit)
        written.finish(End(reason=1))
        committed, end = read.progress()
        assert end == End(reason=1)
        while len(got) < committed:
            got += read.read(len(got), limit)
        assert got == b"".join(tokens)
        assert written.tokens == len(tokens)
        read.close()


def test_nul_bytes_and_empty_tokens_arrive(directory: SegmentDirectory, ids: Ids) -> None:
    made = writer(directory, ids.new())
    read = reader(directory, made.stream_id)
    for token in (b"", b"\0", b"", b"a\0b"):
        made.write(token)
    made.finish(End())
    assert read.progress() == (4, End())
    assert read.read(0, 100) == b"\0a\0b"
    assert made.tokens == 4
    read.close()


def test_an_answer_without_a_token_ends_at_0(directory: SegmentDirectory, ids: Ids) -> None:
    made = writer(directory, ids.new())
    read = reader(directory, made.stream_id)
    assert read.progress() == (0, None)
    made.finish(End(reason=2))
    assert read.progress() == (0, End(reason=2))
    assert read.first_commit_ns() is None
    read.close()


def test_an_empty_token_is_not_the_first_commit(plain: PlainDirectory) -> None:
    made = writer(plain, "0" * 32)
    read = reader(plain, made.stream_id)
    made.write(b"")
    read.progress()
    assert read.first_commit_ns() is None
    made.write(b"x")
    read.progress()
    first = read.first_commit_ns()
    assert first is not None
    made.write(b"y")
    read.progress()
    assert read.first_commit_ns() == first
    made.close()
    read.close()


def test_a_log_takes_exactly_its_capacity(directory: SegmentDirectory, ids: Ids) -> None:
    made = writer(directory, ids.new())
    assert made.capacity_bytes == CAPACITY
    made.write(bytes(CAPACITY - 1))
    with pytest.raises(LogFull, match=f"--stream-bytes.*{SMALL}") as caught:
        made.write(b"ab")
    assert len(str(caught.value)) < 200
    assert made.committed_bytes == CAPACITY - 1
    assert made.write(b"z") == CAPACITY
    with pytest.raises(LogFull):
        made.write(b"x")
    assert made.write(b"") == CAPACITY
    read = reader(directory, made.stream_id)
    made.finish(End())
    assert read.progress() == (CAPACITY, End())
    assert read.read(CAPACITY - 1, 100) == b"z"
    read.close()


def test_reading_stays_inside_what_progress_has_reported(plain: PlainDirectory) -> None:
    made = writer(plain, "0" * 32)
    read = reader(plain, made.stream_id)
    made.write(b"abc")
    assert read.read(0, 10) == b""
    read.progress()
    made.write(b"def")
    assert read.read(0, 10) == b"abc"
    assert read.read(3, 10) == b""
    assert read.read(1, 1) == b"b"
    for position in (-1, 4):
        with pytest.raises(StreamMisuse):
            read.read(position, 1)
    made.close()
    read.close()


def test_a_finished_log_takes_no_more_calls(plain: PlainDirectory) -> None:
    made = writer(plain, "0" * 32)
    made.finish(End())
    for call in (lambda: made.write(b"x"), lambda: made.write(b""), lambda: made.finish(End())):
        with pytest.raises(StreamMisuse, match="finished or closed"):
            call()
    made.close()
    made.close()


@pytest.mark.parametrize(
    "end",
    [
        End(17),
        End(-1),
        End(reason=-1),
        End(reason=1 << 32),
        End(prompt_tokens=1 << 32),
        End(cached_tokens=-1),
    ],
)
def test_an_end_that_does_not_fit_leaves_the_log_open(plain: PlainDirectory, end: End) -> None:
    made = writer(plain, "0" * 32)
    read = reader(plain, made.stream_id)
    with pytest.raises(StreamMisuse):
        made.finish(end)
    assert read.progress() == (0, None)
    assert not read.writer_gone()
    made.finish(End(16, layout.U32_MAX))
    assert read.progress() == (0, End(16, layout.U32_MAX))
    read.close()


@settings(max_examples=60)
@given(st.text(), st.none() | st.binary(max_size=2048), st.integers(0, 16))
def test_every_end_comes_back(text: str, stop: bytes | None, code: int) -> None:
    end = End(code, 3, stop, 1, 2, 3, text)
    with tempfile.TemporaryDirectory(prefix="rrpa-", dir="/tmp") as path:
        directory = PlainDirectory(path)
        made = writer(directory, "0" * 32)
        made.finish(end)
        read = reader(directory, "0" * 32)
        found = read.progress()[1]
        read.close()
    assert found is not None
    if len(text.encode()) <= layout.TEXT_LIMIT_BYTES:
        assert found == end


@pytest.mark.parametrize("character", ["a", "é", "€", "😀"])
@pytest.mark.parametrize("shift", range(4))
def test_long_texts_are_cut_between_characters(
    plain: PlainDirectory, character: str, shift: int
) -> None:
    text = "x" * shift + character * layout.TEXT_LIMIT_BYTES
    made = writer(plain, "0" * 32)
    made.finish(End(13, text=text, stop_sequence=(text * 2).encode()))
    read = reader(plain, "0" * 32)
    found = read.progress()[1]
    read.close()
    assert found is not None
    assert found.stop_sequence is not None
    wide = len(character.encode())
    for cut, limit in (
        (found.text.encode(), layout.TEXT_LIMIT_BYTES),
        (found.stop_sequence, layout.STOP_LIMIT_BYTES),
    ):
        assert limit - wide < len(cut) <= limit
        assert (text * 2).encode().startswith(cut)
        cut.decode()


def test_a_lone_surrogate_in_a_text_is_replaced(plain: PlainDirectory) -> None:
    made = writer(plain, "0" * 32)
    made.finish(End(13, text="a\ud800b"))
    read = reader(plain, "0" * 32)
    assert read.progress()[1] == End(13, text="a?b")
    read.close()


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_log_is_born_locked_private_sparse_and_close_on_exec(
    directory: SegmentDirectory, ids: Ids, umask: int
) -> None:
    old = os.umask(umask)
    try:
        made = LogWriter.create(directory, ids.new())
    finally:
        os.umask(old)
    found = path_of(directory, made.stream_id).stat()
    assert stat.S_IMODE(found.st_mode) == 0o640
    assert (found.st_size, found.st_nlink) == (layout.DEFAULT_STREAM_BYTES, 1)
    # Only the 4 KiB in use are there, not the 64 KiB header page (and no data).
    assert found.st_blocks * 512 <= 8192
    with contextlib.closing(os.fdopen(directory.open(layout.log_name(made.stream_id)), "rb")) as f:
        assert not os.get_inheritable(f.fileno())
        with pytest.raises(BlockingIOError):
            fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
        assert not os.get_inheritable(made._lease.fd)
        made.close()
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    made.unlink()
    made.unlink()
    assert not path_of(directory, made.stream_id).exists()


def test_an_id_is_used_once(directory: SegmentDirectory, ids: Ids) -> None:
    made = writer(directory, ids.new())
    made.write(b"first")
    with pytest.raises(StreamMisuse, match="exists already"):
        writer(directory, made.stream_id)
    read = reader(directory, made.stream_id)
    assert read.progress() == (5, None)
    assert not read.writer_gone()
    assert [name for name in directory.names() if "tmp" in name and made.stream_id in name] == []
    made.close()
    read.close()


@pytest.mark.parametrize(
    "bad",
    ["", "../x", "/etc/x", "a/b", ".", "A" * 32, "0" * 31, "0" * 33, "0" * 32 + "\n", "é" * 32],
)
def test_only_32_hex_digits_are_an_id(directory: SegmentDirectory, bad: str) -> None:
    with pytest.raises(StreamMisuse):
        writer(directory, bad)
    with pytest.raises(StreamMisuse):
        reader(directory, bad)


@pytest.mark.parametrize("size", [0, 65536, 131071, 131073, 1 << 41])
def test_a_size_that_is_no_multiple_of_64_kib_is_refused(plain: PlainDirectory, size: int) -> None:
    with pytest.raises(StreamMisuse, match="--stream-bytes"):
        writer(plain, "0" * 32, stream_bytes=size)
    assert plain.names() == []


def test_a_poll_and_a_read_are_one_pread_each(
    plain: PlainDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = writer(plain, "0" * 32)
    read = reader(plain, made.stream_id)
    made.write(b"abc")
    calls: list[tuple[int, int]] = []
    real = os.pread

    def counting(fd: int, size: int, offset: int) -> bytes:
        calls.append((size, offset))
        return real(fd, size, offset)

    monkeypatch.setattr(os, "pread", counting)
    read.progress()
    assert read.read(0, 65536) == b"abc"
    assert calls == [(32, 128), (3, 65536)]
    made.finish(End())
    read.progress()
    calls.clear()
    read.progress()
    assert calls == []
    monkeypatch.undo()
    read.close()
