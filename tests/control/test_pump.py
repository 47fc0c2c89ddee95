"""The loop drives the broker at rings and, while streams live, at intervals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rrpa_sidecar.control.pump import Pump
from rrpa_sidecar.shm.doorbell import Bell, Ringer

NEVER_S = 3600.0
OFTEN_S = 0.001


class FakeBroker:
    """Counts what the pump asks for."""

    def __init__(self) -> None:
        self.busy = False
        self.on_busy = None
        self.scans = 0
        self.sweeps = 0
        self.rests_after = 0
        self.called = asyncio.Event()

    def scan(self) -> None:
        self.scans += 1
        self.called.set()

    def sweep(self) -> None:
        self.sweeps += 1
        if self.sweeps == self.rests_after:
            self.busy = False
        self.called.set()

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
