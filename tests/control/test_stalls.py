"""Streams that stand still are reported: once each time, and only those."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from rrpa_sidecar.control.lifecycle import State
from rrpa_sidecar.control.stalls import LOOKS, Stalls

S = 1_000_000_000
TIMEOUT_NS = 10 * S
STEP_NS = TIMEOUT_NS // LOOKS


class World:
    """Streams, their time, and what the log says."""

    def __init__(self) -> None:
        self.now_ns = 5 * S
        self.streams: dict[str, SimpleNamespace] = {}
        self.looked: list[str] = []
        self.on_look = lambda stream: None
        self.stalls = Stalls(TIMEOUT_NS, self._look)

    def _look(self, stream) -> None:
        self.looked.append(stream.stream_id)
        self.on_look(stream)

    def add(self, name: str, state: State = State.STREAMING, *, engine: bool = True):
        self.streams[name] = stream = Stream(name, state, engine)
        return stream

    def wait(self, ns: int) -> int:
        """Sweep as often as the broker does; return the gauge."""
        until = self.now_ns + ns
        while self.now_ns < until:
            self.now_ns = min(until, self.now_ns + STEP_NS)
            self.stalls.sweep(self.streams.values(), self.now_ns)
        return self.stalls.count


class Stream(SimpleNamespace):
    __hash__ = object.__hash__

    def __init__(self, name: str, state: State, engine: bool) -> None:
        self.word = 0
        table = SimpleNamespace(word=lambda slot: (self.word, False))
        super().__init__(
            stream_id=name,
            state=state,
            slot=0 if engine else -1,
            engine=SimpleNamespace(name="hung", table=table) if engine else None,
            progress=None if state is State.SUBMITTED else SimpleNamespace(committed=0),
        )

    def __eq__(self, other: object) -> bool:
        return self is other


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> World:
    caplog.set_level(logging.INFO)
    made = World()
    made.stalls.sweep([], made.now_ns)
    return made


@pytest.mark.parametrize(
    "state", [State.SUBMITTED, State.STREAMING, State.LEAVING, State.CORRUPT, State.FOUND]
)
def test_stream_is_reported_after_the_timeout_and_not_before(world, caplog, state) -> None:
    world.add("s", state, engine=state is not State.FOUND)
    assert world.wait(TIMEOUT_NS - STEP_NS) == 0
    assert caplog.text == ""
    assert world.wait(2 * STEP_NS) == 1
    assert "stream s is stalled: no progress for 10" in caplog.text
    assert world.looked == ["s"]


@pytest.mark.parametrize("state", [State.QUEUED, State.ENDED, State.LOSING])
def test_stream_that_no_living_engine_writes_is_none(world, state) -> None:
    world.add("s", state)
    assert world.wait(5 * TIMEOUT_NS) == 0


def test_each_stall_has_one_line_and_progress_ends_it(world, caplog) -> None:
    stream, other = world.add("slow"), world.add("swift")
    for turn in (1, 2):
        for _ in range(30):
            other.progress.committed += 1
            world.wait(STEP_NS)
        assert world.stalls.count == 1
        assert caplog.text.count("is stalled") == turn
        stream.word += 5
        assert world.wait(STEP_NS) == 0
    assert "swift" not in caplog.text
    assert "at 0 bytes" in caplog.text
    assert "at 5 bytes" in caplog.text


def test_progress_that_no_table_told_of_is_found_in_the_log(world, caplog) -> None:
    stream = world.add("s")

    def found(_) -> None:
        stream.progress.committed += 1

    world.on_look = found
    assert world.wait(5 * TIMEOUT_NS) == 0
    assert len(world.looked) == 4
    assert caplog.text == ""


def test_stream_that_the_look_found_over_is_not_reported(world, caplog) -> None:
    stream = world.add("s")

    def over(_) -> None:
        stream.state = State.ENDED

    world.on_look = over
    assert world.wait(2 * TIMEOUT_NS) == 0
    assert caplog.text == ""


def test_gauge_falls_when_a_stalled_stream_is_gone(world) -> None:
    world.add("s")
    assert world.wait(2 * TIMEOUT_NS) == 1
    world.streams.clear()
    assert world.wait(STEP_NS) == 0


def test_looks_are_rare(world) -> None:
    """All streams, 20 times in each timeout, however often the broker sweeps."""
    asked = []
    streams = [world.add(str(n)) for n in range(3)]
    for _ in range(1000):
        world.now_ns += STEP_NS // 100

        def counted():
            asked.append(1)
            return iter(streams)

        world.stalls.sweep(Lazy(counted), world.now_ns)
    assert len(asked) == pytest.approx(10, abs=1)


class Lazy:
    def __init__(self, make) -> None:
        self._make = make

    def __iter__(self):
        return self._make()
