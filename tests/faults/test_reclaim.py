"""What killed processes leave is removed by whoever comes after, and nothing else ever is (G26).

RRPA_ROUNDS says how often sidecar and engine are killed; the shipped number keeps it short.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import PlainDirectory
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.reclaim import Reclaim, reclaim
from rrpa_sidecar.shm.table import TableWriter
from rrpa_sidecar.shm.writer import LogWriter
from tests.faults.stage import Puppet, caller_of
from tests.harness.processes import Daemon, eventually
from tests.shm.support import exit_of, fork

ROUNDS = int(os.environ.get("RRPA_ROUNDS", "3"))
STREAMS = 10
STREAM_BYTES = 128 * 1024
SETTINGS = {"shm_timeout_s": 1, "resume_window_s": 1, "stream_bytes": STREAM_BYTES}


@pytest.fixture
def shared() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="rrpa-test-"))
    yield path
    shutil.rmtree(path)


class Foreign:
    """What is none of a cleaner's business: others' files, strange ones, and a live engine's."""

    def __init__(self, path: Path) -> None:
        directory = PlainDirectory(str(path))
        (path / "sem.other").write_bytes(b"another product's")
        (path / f"rrpa_{secrets.token_hex(16)}").write_bytes(b"has our name, and no more of ours")
        (path / f"rrpa_table_{secrets.token_hex(16)}").symlink_to("/etc/hostname")
        (path / f"rrpa_table_{secrets.token_hex(16)}").write_bytes(b"no table of ours")
        (path / "rrpa_notes.txt").touch()
        os.mkfifo(path / f"rrpa_tmp_{secrets.token_hex(16)}_1")
        self.log = LogWriter.create(directory, secrets.token_hex(16), stream_bytes=STREAM_BYTES)
        self.table = TableWriter.create(directory, secrets.token_hex(16), 4, bytes(16))
        self.log.write(b"alive")
        self._path = path
        self._before = self._seen()

    def _seen(self) -> dict[str, tuple[int, int]]:
        found = {}
        for entry in self._path.iterdir():
            with contextlib.suppress(FileNotFoundError):
                each = entry.lstat()
                found[entry.name] = (each.st_ino, each.st_size)
        return found

    def assert_alone(self) -> None:
        """All of it is there as it was, and nothing else."""
        eventually(lambda: self._seen() == self._before, 10, what="only foreign files are left")

    def assert_untouched(self) -> None:
        assert self._before.items() <= self._seen().items()

    def close(self) -> None:
        self.log.close()
        self.table.close()


@pytest.fixture
def foreign(shared: Path) -> Iterator[Foreign]:
    made = Foreign(shared)
    yield made
    made.close()


def plant(path: Path, count: int) -> None:
    """Leave what writers leave when they are killed: logs, tables, files that were never born."""
    directory = PlainDirectory(str(path))
    for n in range(count):
        made = secrets.token_hex(16)
        if n % 3 == 0:
            LogWriter.create(directory, made, stream_bytes=STREAM_BYTES).close()
        elif n % 3 == 1:
            TableWriter.create(directory, made, 1, bytes(16)).close()
        else:
            os.close(directory.create(layout.temporary_name(made, 1), STREAM_BYTES))


def test_rounds_of_kills_leave_nothing_and_start_up_is_never_hindered(
    shared: Path, foreign: Foreign, seeded
) -> None:
    for _ in range(ROUNDS):
        daemon = Daemon(shm_dir=shared, **SETTINGS)
        try:
            with daemon, caller_of(daemon) as caller, Puppet(daemon, STREAMS) as puppet:
                eventually(lambda puppet=puppet: puppet.do("serving"), what="attached")
                calls = [caller.call() for _ in range(STREAMS)]
                for job in puppet.take(STREAMS)[:-1]:
                    puppet.write(job, b"to be cut")
                assert calls
                for victim in seeded.sample([daemon, puppet], seeded.randint(1, 2)):
                    victim.kill()
                foreign.assert_untouched()
        finally:
            daemon.clean()
    with Daemon(shm_dir=shared, **SETTINGS):
        foreign.assert_alone()


def test_two_sidecars_clean_one_directory_while_both_serve(shared: Path, foreign: Foreign) -> None:
    plant(shared, 300)
    with (
        Daemon(shm_dir=shared, **SETTINGS) as one,
        Daemon(shm_dir=shared, **SETTINGS) as two,
        caller_of(one) as caller_one,
        caller_of(two) as caller_two,
        Puppet(one) as puppet_one,
        Puppet(two) as puppet_two,
    ):
        both = [(caller_one, puppet_one), (caller_two, puppet_two)]
        for _, puppet in both:
            eventually(lambda puppet=puppet: puppet.do("serving"), what="attached")
        until = time.monotonic() + 2.5  # more than a look of each at what the other has
        calls = [caller.call() for caller, _ in both]
        jobs = [puppet.take()[0] for _, puppet in both]
        count = 0
        while time.monotonic() < until:
            for (_, puppet), job in zip(both, jobs, strict=True):
                puppet.write(job, b"token ")
            count += 1
            time.sleep(0.02)
        for (_, puppet), job, call in zip(both, jobs, calls, strict=True):
            puppet.do("finish", job=job)
            assert call.outcome()[:2] == (b"token " * count, "OK")
        names = eventually(
            lambda: [] if len(list(shared.iterdir())) > 8 + 2 else ["few"], what="all is removed"
        )
        assert names
        foreign.assert_untouched()
        for daemon in (one, two):
            assert "Traceback" not in daemon.stderr
            assert daemon.metric("rrpa_shm_utilization_percent") == 0
        removed = [daemon.metric("rrpa_shm_reclaimed_total") for daemon in (one, two)]
        assert sum(removed) == 300, "each is removed, and counted, once"
    foreign.assert_alone()


def test_sidecar_that_is_killed_while_it_cleans_leaves_the_rest_to_the_next(
    shared: Path, foreign: Foreign
) -> None:
    plant(shared, 3000)
    daemon = Daemon(shm_dir=shared, **SETTINGS)
    daemon.launch()
    try:
        eventually(lambda: len(os.listdir(shared)) < 3000, 20, what="it has begun to clean")
        daemon.kill()
        left = len(os.listdir(shared))
    finally:
        daemon.stop(signal.SIGKILL)
    assert left > 1000 + 8, "it was killed in the middle"
    foreign.assert_untouched()
    with Daemon(shm_dir=shared, **SETTINGS):
        foreign.assert_alone()


def test_cleaners_that_race_with_births_never_take_a_live_file(shared: Path) -> None:
    """Two cleaners try every name they see; a writer is born and ends, again and again."""
    directory = PlainDirectory(str(shared))
    until = time.monotonic() + 1.5

    def clean() -> None:
        while time.monotonic() < until:
            for name in directory.names():
                reclaim(directory, name)

    cleaners = [fork(clean), fork(clean)]
    born = 0
    while time.monotonic() < until:
        made = secrets.token_hex(16)
        log = LogWriter.create(directory, made, stream_bytes=STREAM_BYTES)
        name = layout.log_name(made)
        assert os.stat(shared / name).st_nlink == 1
        log.write(b"x" * 100)
        assert reclaim(directory, name) is Reclaim.HELD
        assert (shared / name).exists()
        log.finish(End())
        born += 1
    assert [exit_of(pid) for pid in cleaners] == [0, 0]
    assert born > 100
    for name in directory.names():
        assert reclaim(directory, name) is Reclaim.REMOVED
    assert directory.names() == []
