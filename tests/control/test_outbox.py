"""What waits for an engine is in order and bounded."""

from __future__ import annotations

import asyncio

import pytest

from rrpa_sidecar.clock import SystemClock
from rrpa_sidecar.control.live import Labels, LiveStream
from rrpa_sidecar.control.outbox import MESSAGE_BYTES, ROOM, ROOM_PER_SLOT, Outbox
from rrpa_sidecar.errors import CapacityExhausted, CorruptLog
from rrpa_sidecar.pb.engine_pb2 import Submit


async def test_commands_leave_in_order_and_together():
    outbox = Outbox(1)
    outbox.cancel("a")
    outbox.release("b")
    cancel, release = (await outbox.take()).commands
    assert cancel.cancel.stream_id == "a"
    assert release.release.stream_id == "b"


async def test_submit_says_all_that_the_engine_and_a_later_sidecar_must_know():
    outbox = Outbox(1)
    labels = Labels("mine", "s", priority=-3, traceparent="00-1", resumable=True)
    stream = LiveStream(SystemClock(), "a" * 32, "m", labels, request=b"asked")
    stream.slot = 2
    outbox.submit(stream, 1500)
    (command,) = (await outbox.take()).commands
    assert command.submit == Submit(
        stream_id="a" * 32,
        slot=2,
        request=b"asked",
        request_id="mine",
        traceparent="00-1",
        priority=-3,
        timeout_ms=1500,
        resumable=True,
    )


async def test_adopted_stream_has_a_slot_or_none_and_slot_0_is_one():
    outbox = Outbox(1)
    outbox.adopt("a", 0)
    outbox.adopt("b", None)
    outbox.draining()
    first, second, third = (await outbox.take()).commands
    assert (first.adopt.stream_id, first.adopt.HasField("slot"), first.adopt.slot) == ("a", True, 0)
    assert (second.adopt.stream_id, second.adopt.HasField("slot")) == ("b", False)
    assert third.WhichOneof("command") == "draining"


async def test_take_waits_for_a_command():
    outbox = Outbox(1)
    taking = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    assert not taking.done()
    outbox.cancel("a")
    (cancel,) = (await taking).commands
    assert cancel.cancel.stream_id == "a"


@pytest.mark.parametrize(("size", "together"), [(MESSAGE_BYTES - 1, 1), (MESSAGE_BYTES // 3, 3)])
async def test_message_is_closed_by_the_command_that_makes_it_long(size, together):
    outbox = Outbox(4)
    for number in range(7):
        labels = Labels(str(number), "s")
        stream = LiveStream(SystemClock(), "i", "m", labels, request=b"x" * size)
        stream.slot = 0
        outbox.submit(stream, None)
    said = []
    while len(said) < 7:
        commands = (await outbox.take()).commands
        assert len(commands) == min(together, 7 - len(said))
        said += [command.submit.request_id for command in commands]
    assert said == [str(number) for number in range(7)]


async def test_engine_that_never_reads_is_given_up_at_the_limit():
    outbox = Outbox(2)
    for number in range(ROOM + 2 * ROOM_PER_SLOT):
        outbox.cancel(str(number))
    assert outbox.failure is None
    outbox.cancel("one more")
    with pytest.raises(CapacityExhausted, match="40 commands unread"):
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
