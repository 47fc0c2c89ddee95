"""Files that nobody needs any more: removed once, as soon as their writers let go."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from rrpa_sidecar.control.leftovers import Leftovers
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.reclaim import Reclaim
from rrpa_sidecar.shm.writer import LogWriter, log_header
from tests.control.engine import STREAM_BYTES
from tests.harness.limits import too_many_open_files


@pytest.fixture
def leftovers(shm, clock) -> Leftovers:
    return Leftovers(shm, clock)


@pytest.fixture
def held(shm) -> Iterator[LogWriter]:
    """A log whose writer keeps its lease."""
    made = LogWriter.create(shm, secrets.token_hex(16), stream_bytes=STREAM_BYTES)
    yield made
    made.close()


def test_file_whose_writer_lets_go_is_removed_and_told_once(leftovers, held, clock):
    told = []
    leftovers.add(layout.log_name(held.stream_id), told.append)
    assert (told, len(leftovers)) == ([], 1)
    held.close()
    for _ in range(3):
        clock.jump_s(1)
        leftovers.sweep(clock.now_ns())
    assert (told, len(leftovers)) == ([Reclaim.REMOVED], 0)


@pytest.mark.parametrize("when", ["at once", "in a sweep"])
def test_what_is_owed_once_is_not_done_again_when_it_raised(leftovers, held, clock, when):
    told = []

    def on_done(outcome: Reclaim) -> None:
        told.append(outcome)
        raise ZeroDivisionError

    if when == "at once":
        held.close()
        with pytest.raises(ZeroDivisionError):
            leftovers.add(layout.log_name(held.stream_id), on_done)
    else:
        leftovers.add(layout.log_name(held.stream_id), on_done)
        held.close()
        clock.jump_s(1)
        with pytest.raises(ZeroDivisionError):
            leftovers.sweep(clock.now_ns())
    clock.jump_s(10)
    leftovers.sweep(clock.now_ns())
    assert told == [Reclaim.REMOVED]


def test_file_that_is_held_for_long_hurries_nobody(leftovers, held, clock):
    leftovers.add(layout.log_name(held.stream_id), lambda _: None)
    assert leftovers.hurried
    for _ in range(10):
        clock.jump_s(1)
        leftovers.sweep(clock.now_ns())
    assert len(leftovers) == 1
    assert not leftovers.hurried


def test_files_of_writers_killed_at_their_birth_are_removed_and_others_are_not(
    leftovers, shm, clock, seeded
):
    ids = [f"{seeded.getrandbits(128):032x}" for _ in range(4)]
    empty, begun, alive, strange = (layout.temporary_name(each, 1) for each in ids)
    os.close(shm.create(empty, STREAM_BYTES))
    fd = shm.create(begun, STREAM_BYTES)
    os.pwrite(fd, log_header(ids[1], STREAM_BYTES, 1), 0)
    os.close(fd)
    living = shm.create(alive, STREAM_BYTES)
    fcntl.flock(living, fcntl.LOCK_EX)
    fd = shm.create(strange, STREAM_BYTES)
    os.pwrite(fd, b"of somebody else", 0)
    os.close(fd)
    Path(shm.path, "rrpa_tmp_mine").touch()
    for _ in range(2):
        leftovers.add_unborn()
    assert shm.names() == sorted([alive, strange, "rrpa_tmp_mine"])
    assert len(leftovers) == 1
    shm.rename(alive, layout.log_name(ids[2]))
    clock.jump_s(1)
    leftovers.sweep(clock.now_ns())
    assert layout.log_name(ids[2]) in shm.names()
    assert len(leftovers) == 0
    os.close(living)


def test_a_directory_that_cannot_be_listed_now_loses_nobody_an_engine(leftovers, shm):
    with too_many_open_files():
        leftovers.add_unborn()
    assert len(leftovers) == 0
