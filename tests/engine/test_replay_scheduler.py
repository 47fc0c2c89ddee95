"""Who gets a token when, on a clock that jumps."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from rrpa_sidecar.engine.over import JobCancelled
from rrpa_sidecar.engine.replay.scheduler import LATEST_NS, Scheduler

MS = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.ns = 1_000_003

    def now_ns(self) -> int:
        return self.ns


class FakeJob:
    def __init__(self) -> None:
        self.cancelled = False
        self.ended = ""

    def abandon(self) -> None:
        self.ended = "cancelled"

    def fail_with(self, error: Exception) -> None:
        self.ended = str(error)


class FakePlayback:
    def __init__(self, clock: Clock, start_ns: int, period_ns: int, tokens: int) -> None:
        self.job: Any = FakeJob()
        self.due_ns = start_ns
        self.times: list[int] = []
        self._clock, self._period_ns, self._left = clock, period_ns, tokens

    def advance(self) -> bool:
        self.times.append(self._clock.ns)
        self.due_ns += self._period_ns
        self._left -= 1
        return self._left == 0


class Engine:
    """Its `wait` lets the time pass; `late_ns` is how much too long each wait lasts."""

    def __init__(self, clock: Clock, late_ns: int = 0) -> None:
        self.stopping = False
        self.steps: list[int] = []
        self.arrivals: list[tuple[int, Any]] = []
        self.news = False
        self._clock, self._late_ns = clock, late_ns
        self._turns = 0

    def poll(self) -> list[Any]:
        here = [job for at, job in self.arrivals if at <= self._clock.ns]
        self.arrivals = [each for each in self.arrivals if each[0] > self._clock.ns]
        return here

    def wait(self, timeout_s: float | None = None) -> bool:
        self._turns += 1
        until = [at for at, _ in self.arrivals]
        if timeout_s is not None:
            until.append(self._clock.ns + round(timeout_s * 1e9))
        if not until or self._turns > 5000:
            self.stopping = True
            return True
        self._clock.ns = max(self._clock.ns, min(until)) + self._late_ns
        return self.news

    def step(self) -> AbstractContextManager[None]:
        self.steps.append(self._clock.ns)
        return nullcontext()


def play(
    *playbacks: FakePlayback, clock: Clock, shared: bool, period_ns: int, late_ns: int = 0
) -> Engine:
    engine = Engine(clock, late_ns)
    engine.arrivals = [(0, each) for each in playbacks]
    scheduler = Scheduler(
        lambda playback: playback,  # type: ignore[arg-type, return-value]
        period_ns=period_ns,
        shared_steps=shared,
        clock=clock,
    )
    scheduler.run(engine)
    assert scheduler.playing == 0
    return engine


def test_pace_does_not_drift_when_every_wait_is_late() -> None:
    clock = Clock()
    start = clock.ns
    one = FakePlayback(clock, start, 10 * MS, 100)
    play(one, clock=clock, shared=False, period_ns=10 * MS, late_ns=MS)
    assert [at - start - index * 10 * MS for index, at in enumerate(one.times[1:], 1)] == [MS] * 99


def test_shared_steps_give_all_their_token_at_the_same_moment() -> None:
    clock = Clock()
    three = [FakePlayback(clock, clock.ns + offset, 10 * MS, 5) for offset in (0, 3, 7)]
    engine = play(*three, clock=clock, shared=True, period_ns=10 * MS)
    assert three[0].times == three[1].times == three[2].times
    assert len(engine.steps) == 5
    assert all(at % (10 * MS) == 0 for at in engine.steps), "steps stay on one beat"


def test_own_steps_have_their_own_beat_and_no_shared_bell() -> None:
    clock = Clock()
    begin = clock.ns
    two = [FakePlayback(clock, begin + offset, 10 * MS, 5) for offset in (0, 3 * MS)]
    engine = play(*two, clock=clock, shared=False, period_ns=10 * MS)
    assert [at - begin for at in two[0].times] == [0, 10 * MS, 20 * MS, 30 * MS, 40 * MS]
    assert [at - begin for at in two[1].times] == [3 * MS + 10 * MS * k for k in range(5)]
    assert engine.steps == []


@pytest.mark.parametrize("shared", [True, False])
def test_prompt_delay_comes_before_the_first_token(shared: bool) -> None:
    clock = Clock()
    late = FakePlayback(clock, clock.ns + 500 * MS, 10 * MS, 2)
    early = FakePlayback(clock, clock.ns, 10 * MS, 200)
    begin = clock.ns
    play(early, late, clock=clock, shared=shared, period_ns=10 * MS)
    assert 500 * MS <= late.times[0] - begin <= 510 * MS
    assert late.times[1] - late.times[0] == 10 * MS


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("pause_ns", "made_up"), [(LATEST_NS // 2, 50), (2 * LATEST_NS, 0)])
def test_short_pause_of_the_machine_is_made_up_for_and_a_long_one_is_not(
    shared: bool, pause_ns: int, made_up: int
) -> None:
    clock = Clock()
    one = FakePlayback(clock, clock.ns, 10 * MS, 200)
    advance = one.advance

    def sleepy() -> bool:
        if len(one.times) == 10:
            clock.ns += pause_ns
        return advance()

    one.advance = sleepy  # type: ignore[method-assign]
    play(one, clock=clock, shared=shared, period_ns=10 * MS)
    woke = one.times[10]
    assert made_up <= len([at for at in one.times[11:] if at == woke]) <= made_up + 2
    assert abs(one.times[-1] - woke - (189 - made_up) * 10 * MS) <= 30 * MS


@pytest.mark.parametrize("shared", [True, False])
def test_as_fast_as_possible_takes_turns(shared: bool) -> None:
    clock = Clock()
    two = [FakePlayback(clock, clock.ns, 0, 50) for _ in "12"]
    play(*two, clock=clock, shared=shared, period_ns=0)
    assert two[0].times == two[1].times


@pytest.mark.parametrize("shared", [True, False])
def test_cancelled_answer_ends_at_once_however_far_its_next_token(shared: bool) -> None:
    clock = Clock()
    one = FakePlayback(clock, clock.ns + 3_600_000 * MS, 10 * MS, 2)
    engine = Engine(clock)
    engine.arrivals = [(0, one)]
    one.job.cancelled = engine.news = True
    scheduler = Scheduler(
        lambda playback: playback,  # type: ignore[arg-type, return-value]
        period_ns=10 * MS,
        shared_steps=shared,
        clock=clock,
    )
    scheduler.run(engine)
    assert one.job.ended == "cancelled"
    assert one.times == []


@pytest.mark.parametrize("shared", [True, False])
def test_error_of_one_answer_leaves_the_others_playing(shared: bool) -> None:
    clock = Clock()
    good, bad, gone = (FakePlayback(clock, clock.ns, 10 * MS, 5) for _ in range(3))

    def fails() -> bool:
        raise RuntimeError("boom")

    def leaves() -> bool:
        raise JobCancelled

    bad.advance, gone.advance = fails, leaves  # type: ignore[method-assign]
    play(bad, gone, good, clock=clock, shared=shared, period_ns=10 * MS)
    assert bad.job.ended == "boom"
    assert gone.job.ended == ""
    assert len(good.times) == 5
