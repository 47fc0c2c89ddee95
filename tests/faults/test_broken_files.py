"""A file that somebody broke ends its own stream with DATA_LOSS; nobody else notices.

Beside each broken log 20 streams of the same engine go on, over both front ends. Its engine is
quarantined: it gets nothing new until its open streams are over, and attaches again then, clean.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rrpa_sidecar.engine import Engine, Job, JobCancelled, attach
from rrpa_sidecar.shm import layout
from tests.faults.breaking import BREAKS, Break, poke, punch
from tests.faults.stage import Answer, Caller, needs_root
from tests.harness.processes import Daemon, eventually

NEIGHBOURS = 20
FIRST, SECOND = b"first words, ", "and ünlike the 2nd".encode()
STREAM_BYTES = 128 * 1024


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon(stream_bytes=STREAM_BYTES) as running:
        yield running
        assert running.alive, running.said()
        assert "Traceback" not in running.stderr
    assert running.returncode == 0


@pytest.fixture(scope="module")
def callers(daemon: Daemon) -> Iterator[list[Caller]]:
    made = [Caller(daemon.grpc_address), Caller(f"unix:{daemon.envoy_socket}")]
    yield made
    for each in made:
        each.close()


class Play:
    """An engine, a victim and its neighbours."""

    def __init__(self, daemon: Daemon, callers: list[Caller], engine: Engine) -> None:
        self.daemon, self.engine = daemon, engine
        self._callers = callers
        self.quarantined = daemon.metric("rrpa_engines_quarantined_total")
        self.calls = [callers[i % 2].call() for i in range(NEIGHBOURS + 1)]
        taken: list[Job] = []
        eventually(
            lambda: taken.extend(engine.poll()) or len(taken) == len(self.calls), what="jobs"
        )
        jobs = {job.stream_id: job for job in taken}
        self.jobs = [jobs[call.stream_id] for call in self.calls]
        self.path = Path(daemon.shm_dir, layout.log_name(self.jobs[0].stream_id))
        self.table = next(Path(daemon.shm_dir).glob("rrpa_table_*"))

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """What the engine does in this block, the sidecar finds afterwards, all at once."""
        self.daemon.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.daemon.signal(signal.SIGCONT)

    def say(self, text: bytes, jobs: list[Job]) -> None:
        with self.engine.step():
            for job in jobs:
                job.write(text)

    def heard_first(self) -> None:
        for call in self.calls:
            assert call.read(len(FIRST)) == FIRST

    def neighbours_end_well(self, already: bytes) -> None:
        for job in self.jobs[1:]:
            job.finish("stop")
        wanted = (FIRST + SECOND)[len(already) :]
        for call in self.calls[1:]:
            assert call.outcome()[:2] == (wanted, "OK")

    def victim_is_lost(self, call: Answer, already: bytes) -> None:
        got, code, text = call.outcome()
        assert code == "DATA_LOSS", (code, text)
        assert (FIRST + SECOND).startswith(already + got), got
        assert 10 < len(text) < 200, text
        assert "\n" not in text
        assert text.isprintable(), text
        if not self.jobs[0].over:
            eventually(lambda: self.jobs[0].cancelled, what="its engine is told to stop")
            with pytest.raises(JobCancelled):
                self.jobs[0].write(b"nobody reads this")

    def engine_comes_back_clean(self) -> None:
        def counted() -> bool:
            now = self.daemon.metric("rrpa_engines_quarantined_total")
            return now == self.quarantined + 1

        eventually(counted, what="counted, once")
        eventually(lambda: not self.table.exists(), what="its attachment ends with its last stream")
        eventually(lambda: self.engine.serving, what="it attaches again")
        call = self._callers[0].call()
        taken: list[Job] = []
        eventually(lambda: taken.extend(self.engine.poll()) or taken, what="it serves again")
        taken[0].write(b"clean")
        taken[0].finish("stop")
        assert call.outcome()[:2] == (b"clean", "OK")
        self.all_given_back()

    def all_given_back(self) -> None:
        eventually(lambda: self.daemon.metric("rrpa_active_streams") == 0, what="no stream")
        eventually(lambda: self.daemon.metric("rrpa_shm_utilization_percent") == 0, what="budget")


@pytest.fixture
def play(daemon: Daemon, callers: list[Caller]) -> Iterator[Play]:
    with attach(
        daemon.engine_socket,
        models=["test"],
        capacity=NEIGHBOURS + 1,
        shm_dir=str(daemon.shm_dir),
    ) as engine:
        eventually(lambda: engine.serving, what="attached")
        yield Play(daemon, callers, engine)
    eventually(lambda: daemon.metric("rrpa_engines_attached") == 0, what="detached")
    for left in Path(daemon.shm_dir).iterdir():  # what is not ours, nobody removes
        shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()


def cases(when: str) -> list[object]:
    chosen = [each for each in BREAKS if getattr(each, when) is not None]
    return [
        pytest.param(each, id=each.name, marks=needs_root if "owned" in each.name else ())
        for each in chosen
    ]


@pytest.mark.parametrize("broken", cases("before"))
def test_log_that_is_broken_before_it_is_seen_ends_its_own_stream_only(
    play: Play, broken: Break
) -> None:
    with play.unseen():
        play.say(FIRST, play.jobs)
        broken.do(play.path)
    play.victim_is_lost(play.calls[0], b"")
    play.say(SECOND, play.jobs[1:])
    play.neighbours_end_well(b"")
    play.engine_comes_back_clean()


@pytest.mark.parametrize("broken", cases("after"))
def test_log_that_is_broken_while_it_is_read_ends_its_own_stream_only(
    play: Play, broken: Break
) -> None:
    play.say(FIRST, play.jobs)
    play.heard_first()
    with play.unseen():
        if not broken.after:
            play.say(SECOND, play.jobs[:1])
            play.jobs[0].finish("stop")
        broken.do(play.path)
    play.say(SECOND, play.jobs[1:])
    if broken.after:
        play.victim_is_lost(play.calls[0], FIRST)
        play.neighbours_end_well(FIRST)
        play.engine_comes_back_clean()
    else:
        assert play.calls[0].outcome()[:2] == (SECOND, "OK")
        play.neighbours_end_well(FIRST)
        play.all_given_back()
        assert play.daemon.metric("rrpa_engines_quarantined_total") == play.quarantined


def test_log_with_a_wrong_end_checksum_ends_its_own_stream_only(play: Play) -> None:
    play.say(FIRST, play.jobs)
    play.heard_first()
    with play.unseen():
        play.jobs[0].finish("stop")
        poke(play.path, layout.END_CRC_OFFSET, b"????")
    play.victim_is_lost(play.calls[0], FIRST)
    play.say(SECOND, play.jobs[1:])
    play.neighbours_end_well(FIRST)
    play.engine_comes_back_clean()


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path: os.truncate(path, 65536), id="truncated"),
        pytest.param(lambda path: os.truncate(path, 0), id="emptied"),
    ],
)
def test_broken_table_costs_no_byte_and_its_engine_comes_back_clean(play: Play, spoil) -> None:
    size = play.table.stat().st_size
    play.say(FIRST, play.jobs)
    play.heard_first()
    told = play.daemon.stderr.count("corrupt table")
    with play.unseen():
        spoil(play.table)
    eventually(lambda: play.daemon.stderr.count("corrupt table") > told, what="noticed")
    os.truncate(play.table, size)  # or our own stores to the mapping would be SIGBUS
    play.say(SECOND, play.jobs)
    for job in play.jobs:
        job.finish("stop")
    for call in play.calls:
        assert call.outcome()[:2] == (SECOND, "OK")
    play.engine_comes_back_clean()


@pytest.mark.parametrize("spoil", [os.unlink, lambda path: punch(path, 0, 4096)])
def test_table_that_lost_its_name_or_its_header_serves_on(play: Play, spoil) -> None:
    play.say(FIRST, play.jobs)
    play.heard_first()
    spoil(play.table)
    play.say(SECOND, play.jobs)
    play.jobs[0].finish("stop")
    assert play.calls[0].outcome()[:2] == (SECOND, "OK")
    play.neighbours_end_well(FIRST)
    play.all_given_back()
