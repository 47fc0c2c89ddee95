"""What waits for an engine is in order and bounded."""

from __future__ import annotations

import asyncio

import pytest

from rrpa_sidecar.control.outbox import ROOM, ROOM_PER_SLOT, Outbox
from rrpa_sidecar.errors import CapacityExhausted, CorruptLog


async def test_commands_leave_in_order():
    outbox = Outbox(1)
    outbox.cancel("a")
    outbox.release("b")
    assert (await outbox.take()).cancel.stream_id == "a"
    assert (await outbox.take()).release.stream_id == "b"


async def test_take_waits_for_a_command():
    outbox = Outbox(1)
    taking = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    assert not taking.done()
    outbox.cancel("a")
    assert (await taking).cancel.stream_id == "a"


async def test_engine_that_never_reads_is_given_up_at_the_limit():
    outbox = Outbox(2)
    for number in range(ROOM + 2 * ROOM_PER_SLOT):
        outbox.cancel(str(number))
    assert outbox.failure is None
    outbox.cancel("one more")
    with pytest.raises(CapacityExhausted, match="24 commands unread"):
        await outbox.take()
    outbox.cancel("after the end")  # nobody hears it, nothing breaks


async def test_close_ends_a_wait_with_its_reason_and_the_first_reason_stays():
    outbox = Outbox(1)
    taking = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    outbox.close(CorruptLog("first"))
    outbox.close(CorruptLog("second"))
    with pytest.raises(CorruptLog, match="first"):
        await taking
