"""A writer that is killed after each numbered step of FORMAT.md, "Writing"."""

from __future__ import annotations

import os
import signal

import pytest

from rrpa_sidecar.errors import SegmentMissing
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import PlainDirectory
from rrpa_sidecar.shm.doorbell import Bell, Ringer
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.reclaim import Reclaim, reclaim
from rrpa_sidecar.shm.table import TableReader, TableWriter
from tests.harness.dying import Death, Directory, Steps
from tests.shm.support import exit_of, fork, reader, slots_of, writer

LOG, TABLE, NONCE = "1" * 32, "2" * 32, bytes(16)
FIRST, SECOND = "Bär".encode(), "€ and more".encode()


def live(path: str, bell: str, steps: Steps) -> None:
    """Write FIRST and SECOND and an end, dying on the way."""
    table = TableWriter.create(PlainDirectory(path), TABLE, 2, NONCE)
    directory = Directory(path, steps)
    steps.watch_calls()
    made = writer(directory, LOG, table=table, slot=1)
    steps.watch_stores(made, table)
    ringer = Ringer(bell)
    for token in (FIRST, SECOND):
        made.write(token)
        assert ringer.ring()
        steps.done(11)
    made.finish(End(reason=1))
    assert ringer.ring()
    steps.done(15)


def die(plain: PlainDirectory, step: int, times: int, half: bool = False) -> Bell:
    bell = Bell(f"{plain.path}/bell")
    pid = fork(lambda: live(plain.path, bell.path, Steps(Death(step, times, half))))
    assert exit_of(pid) == -signal.SIGKILL
    return bell


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_writer_killed_at_birth_leaves_only_a_file_to_reclaim(
    plain: PlainDirectory, step: int
) -> None:
    die(plain, step, 1).close()
    with pytest.raises(SegmentMissing):
        reader(plain, LOG)
    (name,) = [name for name in plain.names() if layout.is_temporary(name)]
    assert reclaim(plain, name) is Reclaim.REMOVED
    assert reclaim(plain, layout.table_name(TABLE)) is Reclaim.REMOVED
    assert plain.names() == []


@pytest.mark.parametrize(
    ("step", "times", "half", "committed"),
    [
        (4, 1, False, 0),
        (5, 1, False, 0),
        (6, 1, False, 0),
        (7, 1, False, 0),
        (8, 1, False, len(FIRST)),
        (6, 2, True, len(FIRST)),
        (6, 2, False, len(FIRST)),
        (7, 2, False, len(FIRST)),
        (8, 2, False, len(FIRST + SECOND)),
        (9, 2, False, len(FIRST + SECOND)),
        (10, 2, False, len(FIRST + SECOND)),
        (11, 2, False, len(FIRST + SECOND)),
        (12, 1, False, len(FIRST + SECOND)),
    ],
)
def test_a_writer_killed_while_open_leaves_exactly_the_committed_bytes(
    plain: PlainDirectory, step: int, times: int, half: bool, committed: int
) -> None:
    bell = die(plain, step, times, half)
    read = reader(plain, LOG)
    assert read.progress()[1] is None
    assert read.writer_gone()
    assert read.progress() == (committed, None)
    assert read.read(0, 1000) == (FIRST + SECOND)[:committed]
    assert bell.drain() is (step in (11, 12) or times == 2)
    bell.close()
    assert reclaim(plain, layout.log_name(LOG)) is Reclaim.REMOVED
    # What a reader has open stays readable.
    assert read.read(0, 1000) == (FIRST + SECOND)[:committed]
    read.close()


@pytest.mark.parametrize("step", [13, 14, 15, 16])
def test_a_writer_killed_after_its_end_has_ended(plain: PlainDirectory, step: int) -> None:
    bell = die(plain, step, 1)
    read = reader(plain, LOG)
    assert read.progress() == (len(FIRST + SECOND), End(reason=1))
    assert not read.writer_gone()
    assert read.read(0, 1000) == FIRST + SECOND
    read.close()
    bell.close()
    table = TableReader.open(plain, TABLE, slots=2, nonce=NONCE)
    assert slots_of(table.poll()) == [1]
    assert table.word(1) == (len(FIRST + SECOND), step != 13)
    table.close()


def test_a_writer_that_is_stopped_with_the_lease_is_not_gone(plain: PlainDirectory) -> None:
    ready, ready_in = os.pipe()

    def stop() -> None:
        made = writer(plain, LOG)
        made.write(b"abc")
        os.write(ready_in, b"!")
        signal.pause()

    pid = fork(stop)
    os.read(ready, 1)
    read = reader(plain, LOG)
    os.kill(pid, signal.SIGSTOP)
    assert read.progress() == (3, None)
    assert not read.writer_gone()
    assert reclaim(plain, layout.log_name(LOG)) is Reclaim.HELD
    os.kill(pid, signal.SIGKILL)
    exit_of(pid)
    assert read.writer_gone()
    read.close()
    os.close(ready)
    os.close(ready_in)
