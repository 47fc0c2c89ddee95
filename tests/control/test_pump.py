"""The loop drives the broker at rings and, while streams live, at intervals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvloop

from rrpa_sidecar.control.pump import Pump
from rrpa_sidecar.shm.doorbell import Bell, Ringer

NEVER_S = 3600.0
OFTEN_S = 0.001


class FakeBroker:
    """Counts what the pump asks for."""

    def __init__(self) -> None:
        self.busy = False
        self.hurried = False
        self.seeking = False
        self.rest_s = 3600.0
        self.moves = False
        self.on_busy = None
        self.scans = 0
        self.sweeps = 0
        self.rests_after = 0
        self.called = asyncio.Event()

    def scan(self) -> None:
        self.scans += 1
        self.called.set()

    def sweep(self) -> bool:
        self.sweeps += 1
        if self.sweeps == self.rests_after:
            self.busy = False
        self.called.set()
        return self.moves

    async def next_call(self) -> None:
        async with asyncio.timeout(5):
            await self.called.wait()
        self.called.clear()


@pytest.fixture
async def bell(short_dir: Path) -> AsyncIterator[Bell]:
    made = Bell(str(short_dir / "bell"))
    yield made
    made.close()


@pytest.fixture
async def broker() -> FakeBroker:
    return FakeBroker()


async def test_a_ring_is_a_scan_and_no_sweep(bell, broker):
    pump = Pump(broker, bell, NEVER_S)
    pump.start()
    ringer = Ringer(bell.path)
    for scans in (1, 2):
        ringer.ring()
        await broker.next_call()
        assert (broker.scans, broker.sweeps) == (scans, 0)
    ringer.close()
    pump.close()


async def test_rings_that_wait_together_are_one_scan(bell, broker):
    pump = Pump(broker, bell, NEVER_S)
    pump.start()
    ringer = Ringer(bell.path)
    for _ in range(5):
        ringer.ring()
    await broker.next_call()
    await asyncio.sleep(0)
    assert broker.scans == 1
    ringer.close()
    pump.close()


async def test_sweeps_begin_when_the_broker_is_busy_and_stop_when_it_is_not(bell, broker):
    pump = Pump(broker, bell, OFTEN_S)
    pump.start()
    await asyncio.sleep(10 * OFTEN_S)
    assert broker.sweeps == 0
    broker.busy = True
    broker.rests_after = 3
    broker.on_busy()
    broker.on_busy()
    while broker.busy:
        await broker.next_call()
    await asyncio.sleep(10 * OFTEN_S)
    assert broker.sweeps == 3
    pump.close()


async def test_broker_that_is_busy_before_the_start_is_swept(bell, broker):
    broker.busy = True
    pump = Pump(broker, bell, OFTEN_S)
    pump.start()
    await broker.next_call()
    pump.close()


async def test_fault_in_one_sweep_does_not_end_the_sweeps(bell, broker, monkeypatch):
    faults: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    sound = broker.sweep

    def sweep() -> None:
        sound()
        if broker.sweeps == 1:
            raise ZeroDivisionError

    monkeypatch.setattr(broker, "sweep", sweep)
    broker.busy = True
    pump = Pump(broker, bell, OFTEN_S)
    pump.start()
    await broker.next_call()
    await broker.next_call()
    assert broker.sweeps == 2
    assert len(faults) == 1
    pump.close()


async def test_closed_pump_does_nothing_any_more_and_leaves_the_bell_open(bell, broker):
    broker.busy = True
    pump = Pump(broker, bell, OFTEN_S)
    pump.start()
    pump.close()
    pump.close()
    ringer = Ringer(bell.path)
    ringer.ring()
    await asyncio.sleep(10 * OFTEN_S)
    assert (broker.scans, broker.sweeps) == (0, 0)
    assert bell.drain()
    ringer.close()


class FakeLoop:
    """A loop whose timers are told, and whose time the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.due: list[float] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, callback: object) -> FakeTimer:
        self.due.append(round(when - self.now_s, 9))
        return FakeTimer(when)


class FakeTimer:
    def __init__(self, when: float) -> None:
        self._when = when

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        pass


async def test_sweeps_grow_rarer_while_nothing_moves_and_come_back_at_once(bell, broker):
    pump = Pump(broker, bell, 0.05)
    pump._loop = loop = FakeLoop()
    broker.busy = True
    pump._arm()
    for _ in range(4):
        pump._sweep()
    assert loop.due == [0.05, 0.1, 0.2, 0.2, 0.2]
    broker.moves = True
    pump._sweep()
    assert loop.due[-1] == 0.05


async def test_sweep_that_is_far_off_is_brought_forward_when_somebody_waits_for_it(bell, broker):
    pump = Pump(broker, bell, 0.05)
    pump._loop = loop = FakeLoop()
    broker.busy = True
    for _ in range(3):
        pump._sweep()
    pump._arm()
    assert loop.due == [0.1, 0.2, 0.2]  # one is on its way, soon enough
    broker.hurried = True
    pump._arm()
    assert loop.due[-1] == 0.05


async def test_idle_pump_wakes_up_when_something_kept_is_due_and_not_before(bell, broker):
    pump = Pump(broker, bell, 0.05)
    pump._loop = loop = FakeLoop()
    broker.rest_s = 30.0
    pump._arm()
    pump._arm()
    assert loop.due == [30.001]
    broker.busy = True
    pump._arm()
    assert loop.due == [30.001, 0.05], "it is swept before"
    broker.busy = False
    broker.rest_s = 29.9
    pump._sweep()
    assert loop.due[-1] == 29.901


async def test_readers_on_their_way_get_one_turn_after_the_other_until_they_are_there(bell, broker):
    turns = 0

    def seek() -> None:
        nonlocal turns
        turns += 1
        broker.seeking = turns < 5
        broker.called.set()

    broker.seek = seek
    broker.seeking = broker.busy = True
    pump = Pump(broker, bell, NEVER_S)
    pump.start()
    broker.on_busy()
    while broker.seeking:
        await broker.next_call()
    await asyncio.sleep(10 * OFTEN_S)
    assert (turns, broker.sweeps) == (5, 0)
    broker.seeking = True
    broker.on_busy()
    pump.close()
    await asyncio.sleep(10 * OFTEN_S)
    assert turns == 5


def test_a_sweep_that_is_late_when_it_is_asked_for_comes_and_stands_in_nobodys_way(short_dir):
    """As after a moment in which the process stood still; uvloop has no timer for what is due."""

    async def run() -> None:
        broker, bell = FakeBroker(), Bell(str(short_dir / "bell"))
        broker.rest_s = -1.0
        pump = Pump(broker, bell, NEVER_S)
        pump.start()
        assert broker.on_busy is not None
        broker.on_busy()
        await broker.next_call()
        pump.close()
        bell.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
