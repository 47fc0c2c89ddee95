"""A log that is changed at random while it is read: typed errors, bytes of the file, no hang."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rrpa_sidecar.errors import CorruptLog, SegmentMissing
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import PlainDirectory
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.reader import LogReader
from rrpa_sidecar.shm.reclaim import reclaim
from rrpa_sidecar.shm.writer import LogWriter
from tests.faults.breaking import poke, poke_cursor, punch, regrow

ID = "0123456789abcdef" * 2
SIZE = layout.MIN_STREAM_BYTES
HEADER = layout.HEADER_BYTES

offsets = st.one_of(
    st.integers(0, 304), st.integers(0, layout.HEADER_USED_BYTES), st.integers(HEADER, SIZE - 1)
)
mutations = st.one_of(
    st.tuples(st.just("poke"), offsets, st.binary(min_size=1, max_size=24)),
    st.tuples(st.just("punch"), offsets, st.integers(1, SIZE)),
    st.tuples(st.just("truncate"), st.integers(0, SIZE + 4096)),
    st.tuples(st.just("regrow"), st.integers(0, SIZE)),
    st.tuples(st.just("cursor"), st.integers(0, 70_000), st.integers(0, 70_000)),
    st.tuples(st.just("unlink")),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.binary(max_size=9000)),
        st.tuples(st.just("read"), st.integers(1, 70_000)),
        st.tuples(st.just("probe")),
        st.tuples(st.just("reopen")),
        st.tuples(st.just("finish")),
        mutations,
        mutations,
    ),
    max_size=30,
)


@pytest.fixture(scope="module")
def folder() -> Iterator[str]:
    path = tempfile.mkdtemp(dir="/dev/shm", prefix="rrpa-test-")
    yield path
    shutil.rmtree(path)


class Log:
    """A log, its writer, and every byte that its file ever held."""

    def __init__(self, folder: str) -> None:
        self.directory = PlainDirectory(folder)
        self.path = Path(folder, layout.log_name(ID))
        self.path.unlink(missing_ok=True)
        self.writer = LogWriter.create(self.directory, ID, stream_bytes=SIZE)
        self._fd = os.dup(self.writer._lease.fd)
        self._versions: list[bytes] = []

    def note(self) -> None:
        """Remember the file as it is now."""
        now = os.pread(self._fd, SIZE, HEADER)
        if not self._versions or self._versions[-1] != now:
            self._versions.append(now)

    def held(self, position: int, data: bytes) -> bool:
        """Whether each of these bytes was at its place at some time."""
        now = os.pread(self._fd, len(data), HEADER + position)
        return now == data or all(
            any(version[at : at + 1] == bytes([byte]) for version in self._versions)
            for at, byte in enumerate(data, position)
        )

    def mutate(self, kind: str, *values) -> None:
        if kind == "unlink":
            self.path.unlink(missing_ok=True)
        if not self.path.exists():
            return
        if kind == "poke":
            poke(self.path, *values)
        elif kind == "punch":
            punch(self.path, *values)
        elif kind == "truncate":
            os.truncate(self.path, *values)
        elif kind == "regrow":
            regrow(self.path, *values)
        elif kind == "cursor":
            poke_cursor(self.path, *values)

    def write(self, token: bytes) -> None:
        """As the engine does, but where its own stores would be SIGBUS."""
        room = self.writer.capacity_bytes - self.writer.committed_bytes
        if self.writer._lease.held and os.fstat(self._fd).st_size >= 4096 and len(token) <= room:
            self.writer.write(token)

    def finish(self) -> None:
        if self.writer._lease.held:
            self.writer.finish(End())

    def close(self) -> None:
        self.writer.close()
        os.close(self._fd)


@settings(max_examples=150)
@given(steps)
def test_any_history_gives_typed_errors_and_bytes_that_were_in_the_file(folder, history) -> None:
    log = Log(folder)
    reader: LogReader | None = None
    position = 0
    try:
        for kind, *values in history:
            log.note()
            if kind == "write":
                log.write(*values)
            elif kind == "finish":
                log.finish()
            elif kind not in ("read", "probe", "reopen"):
                log.mutate(kind, *values)
            else:
                try:
                    if reader is None or kind == "reopen":
                        if reader is not None:
                            reader.close()
                        reader, position = None, 0
                        reader = LogReader.open(log.directory, ID, stream_bytes=SIZE)
                    if kind == "probe":
                        reader.writer_gone()
                    committed, _ = reader.progress()
                    assert position <= committed <= SIZE - HEADER
                    data = reader.read(position, values[0] if values else 1)
                    assert log.held(position, data)
                    position += len(data)
                except (CorruptLog, SegmentMissing):
                    break
        reclaim(log.directory, layout.log_name(ID))
    finally:
        if reader is not None:
            reader.close()
        log.close()


def test_log_that_changes_during_each_read_gives_typed_errors_at_once(
    folder: str, seeded: random.Random
) -> None:
    log, over = Log(folder), Event()
    for _ in range(10):
        log.writer.write(b"x" * 1000)

    def mutate() -> None:
        kinds = [
            lambda: poke(log.path, 128, seeded.randbytes(16)),
            lambda: poke_cursor(log.path, seeded.randrange(12_000)),
            lambda: poke_cursor(log.path, 10_000),
            lambda: regrow(log.path, seeded.randrange(SIZE)),
            lambda: punch(log.path, HEADER, seeded.randrange(1, SIZE)),
            lambda: poke(log.path, HEADER, b"x" * seeded.randrange(1, 12_000)),
            lambda: poke(log.path, layout.STATE_OFFSET, bytes([seeded.randrange(3)])),
        ]
        while not over.is_set():
            seeded.choice(kinds)()

    header = log.path.read_bytes()[:4096]
    thread = Thread(target=mutate)
    thread.start()
    outcomes = set()
    until = time.monotonic() + 1
    try:
        while time.monotonic() < until:
            poke(log.path, 0, header)
            began_s = time.thread_time()
            try:
                reader = LogReader.open(log.directory, ID, stream_bytes=SIZE)
            except CorruptLog as error:
                outcomes.add(type(error))
                continue
            try:
                for _ in range(20):
                    committed, end = reader.progress()
                    data = reader.read(0, committed)
                    assert set(data) <= {0, ord("x")}
                    outcomes.add(type(end))
            except CorruptLog as error:
                outcomes.add(type(error))
            finally:
                reader.close()
            assert time.thread_time() - began_s < 0.5, "it neither spins nor reads for ever"
    finally:
        over.set()
        thread.join()
        log.close()
    assert CorruptLog in outcomes
