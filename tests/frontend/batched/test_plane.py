"""Random lives of the whole data plane: every byte once, every frame counted, nothing left."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator

import pytest

from rrpa_sidecar.frontend.batched import connection
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import PlainDirectory
from tests.control.engine import FakeEngine, Submitted
from tests.frontend.batched.plane import ALL, FRAMES, WINDOWS, Call, Plane

STEPS = 250


@pytest.fixture
def memory() -> Iterator[PlainDirectory]:
    path = tempfile.mkdtemp(dir="/dev/shm", prefix="rrpa-test-")
    yield PlainDirectory(path)
    shutil.rmtree(path)


def live(plane: Plane, disturb: Callable[[Plane], None]) -> None:
    """Run one life, time included: the loop's clock is the plane's."""
    loop = asyncio.SelectorEventLoop()
    loop.time = lambda: plane.clock.now / 1e9  # type: ignore[method-assign]

    async def run() -> None:
        plane.start()
        busy = plane.rng.choice([0.02, 0.05, 0.2])
        for _ in range(STEPS):
            plane.clock.jump_s(plane.rng.choice([0, 0.001, 0.02]))
            act(plane, busy)
            disturb(plane)
            if plane.rng.random() < 0.8:
                plane.broker.scan()
            for _ in range(plane.rng.choice([0, 1, 2, 5])):
                await asyncio.sleep(0)
            for peer in plane.peers:
                peer.read(3000 if peer.slow else ALL)
                if plane.rng.random() < 0.7:
                    peer.give(plane.rng.choice([1, 100, 20_000, ALL, ALL, ALL]))
                peer.send()
        await plane.settle()
        check(plane)

    try:
        loop.run_until_complete(run())
    finally:
        plane.close()
        loop.close()


def act(plane: Plane, busy: float) -> None:
    """Let each peer and each engine do one thing, or nothing."""
    rng = plane.rng
    for peer in plane.peers:
        kind = rng.random()
        if kind < busy and not peer.h2.went_away:
            peer.call(rng.choice([None] * 12 + [5, 50, 2000]))
        elif kind < busy + 0.03:
            peer.cancel()
        elif kind < busy + 0.06:
            peer.change(rng.choice(WINDOWS), rng.choice([None, *FRAMES]))
        elif kind < busy + 0.08:
            peer.slow = not peer.slow
        peer.send()
    for engine in plane.engines:
        if engine.engine is not None and engine.engine.attached:
            plane.step(engine)


def check(plane: Plane) -> None:
    calls = [call for peer in plane.peers for call in peer.calls.values()]
    for call in calls:
        check_call(plane, call)
    counted = plane.metrics.model("test")
    frames, size = sum(call.frames for call in calls), sum(len(call.data) for call in calls)
    if any(call.cancelled for call in calls):  # what was on its way is counted
        assert counted.frames >= frames
        assert counted.delivered_bytes >= size
    else:
        assert (counted.frames, counted.delivered_bytes) == (frames, size)
    gaps, firsts = sum(counted.inter_token_s.counts), sum(counted.first_token_s.counts)
    assert gaps + firsts == counted.frames
    assert plane.server.open_calls == plane.broker.active_streams() == 0
    assert not [name for name in plane.directory.names() if "table" not in name]
    for peer in plane.peers:
        assert not peer.connection._closed
        assert peer.connection.is_idle


def check_call(plane: Plane, call: Call) -> None:
    written = plane.written.get(call.name, b"").decode("utf-8", "replace").encode()
    if call.name in plane.lied_about:
        assert not call.data.strip(b"LIE\0"), "nobody else's bytes"
        return
    assert written.startswith(call.data)
    if call.status == "0":
        assert plane.ends[call.name] == "finished"
        assert call.finished
    if call.status in ("0", "13"):
        assert call.data == written
    if call.offset is not None:
        assert call.offset == len(call.data)


@pytest.mark.parametrize("high_water", [4096, connection.HIGH_WATER_BYTES])
def test_whatever_peers_and_engines_do_every_byte_arrives_once(
    memory: PlainDirectory,
    seeded: random.Random,
    monkeypatch: pytest.MonkeyPatch,
    high_water: int,
) -> None:
    """Windows, settings, pauses, cancels, deadlines, drains; engines that fail, vanish, die."""
    monkeypatch.setattr(connection, "HIGH_WATER_BYTES", high_water)
    monkeypatch.setattr(connection, "DEAF_BYTES", 2 * high_water)

    def disturb(plane: Plane) -> None:
        kind = plane.rng.random()
        if kind < 0.005:
            plane.kill()
        elif kind < 0.01 and len(plane.peers) < 4:
            plane.meet()
        elif kind < 0.012 and len(plane.peers) > 1:
            plane.peers[0].connection.drain()
        elif kind < 0.1:
            plane.broker.sweep()

    pauses = 0
    for _ in range(12):
        plane = Plane(memory, random.Random(seeded.getrandbits(32)))
        live(plane, disturb)
        pauses += sum(peer.wire.pauses for peer in plane.peers)
    assert pauses > 0 or high_water > 4096


# --- Engines that lie ---------------------------------------------------------------------


def put_word(engine: FakeEngine, slot: int, word: int) -> None:
    engine.table._words[slot] = word & layout.U64_MAX


def put_tail(engine: FakeEngine, slot: int, record: bytes) -> None:
    at = engine.table._tails_at + slot * layout.TAIL_RECORD_BYTES
    engine.table._lease.map[at : at + layout.TAIL_RECORD_BYTES] = record


def lie(plane: Plane, engine: FakeEngine, submitted: Submitted) -> None:
    """Say something of one stream that is not so, in its word, tail, header or file."""
    rng, slot, writer = plane.rng, submitted.slot, engine.writers[submitted.stream_id]
    path = f"{plane.directory.path}/{layout.log_name(submitted.stream_id)}"
    here, size = engine.table._words[slot], writer.committed_bytes
    ahead, tail = rng.randrange(1, 28), b"LIE" * 9 + b"L"
    checksum = zlib.crc32(tail, layout.HEADER_BYTES + size + ahead).to_bytes(4, "little")
    other = engine.table._tails_at + rng.randrange(engine.capacity) * layout.TAIL_RECORD_BYTES
    others = bytes(engine.table._lease.map[other : other + layout.TAIL_RECORD_BYTES])
    cursor, complement, state = 16, 17, 18
    lies: list[Callable[[], object]] = [
        lambda: put_word(engine, slot, here + 2 * ahead),
        lambda: put_word(engine, slot, here + 2 * rng.choice([4096, 5000, 1 << 30, 1 << 46])),
        lambda: put_word(engine, slot, here - 2 * rng.randrange(size + 1)),
        lambda: put_word(engine, slot, here + (rng.randrange(1, 1 << 16) << 48)),
        lambda: put_word(engine, slot, here ^ (1 << 32)),
        lambda: put_word(engine, slot, here | 1),
        lambda: put_word(engine, slot, rng.getrandbits(64)),
        lambda: put_tail(engine, slot, rng.randbytes(32)),
        lambda: put_tail(engine, slot, others),
        lambda: (
            put_tail(engine, slot, tail + checksum),
            put_word(engine, slot, here + 2 * ahead),
        ),
        lambda: writer._words.__setitem__(cursor, size + rng.choice([1, 5000, 1 << 40])),
        lambda: writer._words.__setitem__(complement, rng.getrandbits(64)),
        lambda: writer._words.__setitem__(state, rng.choice([1, 2, 1 << 63])),
        lambda: os.truncate(path, rng.choice([4096, 65_536, 65_536 + size // 2])),
        lambda: os.unlink(path),
    ]
    plane.lied_about.add(submitted.stream_id)
    rng.choice(lies)()


def test_an_engine_that_lies_harms_nobody_but_the_stream_it_lies_about(
    memory: PlainDirectory, seeded: random.Random
) -> None:
    def disturb(plane: Plane) -> None:
        (engine,) = plane.engines
        for submitted in engine.submitted:
            name = submitted.stream_id
            stream = plane.broker._streams.get(name)
            if name in plane.ends or stream is None or stream.progress is None:
                continue
            if name in plane.lied_about:
                plane.end(engine, name, "lost")
            elif plane.rng.random() < 0.01 and engine.writers[name]._lease.held:
                lie(plane, engine, submitted)
        plane.broker.sweep()

    lies = 0
    for _ in range(20):
        plane = Plane(memory, random.Random(seeded.getrandbits(32)), token=lambda rng: b"LIE")
        live(plane, disturb)
        lies += len(plane.lied_about)
    assert lies > 0
