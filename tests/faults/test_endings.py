"""Streams that end in every way there is leave nothing: no gauge, file, descriptor, task, memory.

RRPA_RUNS=10000 makes the whole proof, in about a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest

from rrpa_sidecar.pb import rrpa_pb2_grpc
from tests.conformance.asking import replay
from tests.conformance.callers import Request
from tests.faults.many import times
from tests.harness.processes import Daemon, ReplayEngine, eventually

RUNS = 600
AT_ONCE = 48
GROWTH_BYTES = 4_000_000
"""Of memory between the first hundreds of streams and the last: allocators are not exact."""
GAUGES = ("rrpa_active_streams", "rrpa_stream_queue_length", "rrpa_shm_utilization_percent")

COUNTING = """
import asyncio, pathlib, signal
from rrpa_sidecar.cli import main
from rrpa_sidecar.sidecar import daemon

class Signals(daemon.Signals):
    def __init__(self, loop):
        super().__init__(loop)
        def count():
            names = sorted(str(each.get_coro()) for each in asyncio.all_tasks(loop))
            pathlib.Path({path!r}).write_text(chr(10).join(names) + chr(10))
        loop.add_signal_handler(signal.SIGUSR1, count)

daemon.Signals = Signals
main()
"""
"""A sidecar that writes down its tasks when it gets SIGUSR1."""


class Counted(Daemon):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._tasks = self.folder / "tasks"
        self.argv = [sys.executable, "-c", COUNTING.format(path=str(self._tasks)), *self.argv[3:]]

    def tasks(self) -> int:
        """Return how many tasks its loop has."""
        self._tasks.unlink(missing_ok=True)
        self.signal(signal.SIGUSR1)
        eventually(self._tasks.exists, what="the sidecar counted its tasks")
        eventually(lambda: self._tasks.read_text().endswith("\n"), what="it has written them all")
        return len(self._tasks.read_text().splitlines())


@pytest.fixture(params=["grpcio", "batched"])
def daemon(request: pytest.FixtureRequest) -> Iterator[Counted]:
    settings = {
        "listen_frontend": request.param,
        "stream_bytes": "128KiB",
        "shm_bytes": 64 * 128 * 1024,
        "queue_limit": 8,
    }
    with Counted(**settings) as running, ReplayEngine(running, capacity=32):
        yield running


class Caller:
    """One call after the other, each with an ending of its own."""

    def __init__(self, stub: rrpa_pb2_grpc.RRPAServiceAsyncStub, target: str) -> None:
        self.stub = stub
        self.target = target

    def call(self, request: Request, timeout: float = 30.0) -> Any:
        return self.stub.CreateStream(request, timeout=timeout)

    async def ends_with(self, code: str, request: Request, timeout: float = 30.0) -> None:
        call = self.call(request, timeout)
        with contextlib.suppress(grpc.RpcError):
            async for _ in call:
                pass
        # The queue may be full, which is an ending too.
        assert (await call.code()).name in (code, "RESOURCE_EXHAUSTED"), await call.details()

    async def ends(self) -> None:
        await self.ends_with("OK", replay([b"fine", b" so"]))

    async def fails(self) -> None:
        await self.ends_with("INTERNAL", replay([b"it "], code=13, text="broke"))

    async def is_rejected(self) -> None:
        await self.ends_with("ABORTED", replay([], code=10, text="not now", reject=True))

    async def is_unknown(self) -> None:
        await self.ends_with("NOT_FOUND", Request(model="nobody"))

    async def runs_out_of_time(self) -> None:
        await self.ends_with("DEADLINE_EXCEEDED", replay([b"x"], delay_s=30), timeout=0.03)

    async def leaves_at_once(self) -> None:
        self.call(replay([b"x"], delay_s=30)).cancel()

    async def leaves_before_the_first_token(self) -> None:
        call = self.call(replay([b"x"], delay_s=30))
        await call.initial_metadata()
        call.cancel()

    async def leaves_twice_in_the_middle(self) -> None:
        call = self.call(replay([b"x"], repeat=500, between_s=0.002))
        with contextlib.suppress(grpc.RpcError):
            await call.read()
        call.cancel()
        call.cancel()

    async def leaves_near_the_end(self) -> None:
        call = self.call(replay([b"x"] * 3, between_s=0.001))
        with contextlib.suppress(grpc.RpcError):
            for _ in range(3):
                await call.read()
        call.cancel()

    async def closes_its_connection(self) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(self.target, options) as channel:
            stub = rrpa_pb2_grpc.RRPAServiceStub(channel)
            call = stub.CreateStream(replay([b"x"], repeat=500, between_s=0.002))
            with contextlib.suppress(grpc.RpcError):
                await call.read()

    def endings(self) -> list[Callable[[], Awaitable[None]]]:
        return [
            self.ends,
            self.ends,
            self.fails,
            self.is_rejected,
            self.is_unknown,
            self.leaves_at_once,
            self.leaves_before_the_first_token,
            self.leaves_twice_in_the_middle,
            self.leaves_near_the_end,
            self.runs_out_of_time,
            self.closes_its_connection,
        ]


async def end_in_every_way(target: str, rng: random.Random, count: int) -> None:
    """Make `count` calls, AT_ONCE at a time."""
    left = iter(range(count))

    async def one_after_the_other(caller: Caller) -> None:
        for number in left:
            endings = caller.endings()
            await endings[number % len(endings) if number < 50 else rng.randrange(len(endings))]()

    async with grpc.aio.insecure_channel(target) as channel:
        caller = Caller(rrpa_pb2_grpc.RRPAServiceStub(channel), target)
        await asyncio.gather(*(one_after_the_other(caller) for _ in range(AT_ONCE)))


def at_rest(daemon: Counted) -> tuple[int, int]:
    """Wait until nothing of any stream is left; return descriptors and tasks."""
    for name in GAUGES:
        eventually(lambda name=name: daemon.metric(name) == 0, what=f"{name} is 0")
    eventually(lambda: daemon.segments() == [], what="no file is left")
    eventually(
        lambda: (
            not [each for each in daemon.descriptors() if "/rrpa_" in each and "table" not in each]
        )
    )
    return len(daemon.descriptors()), daemon.tasks()


@pytest.mark.timeout(600)
async def test_streams_of_all_endings_leave_no_gauge_file_descriptor_task_or_memory(
    daemon: Counted, seeded: random.Random
) -> None:
    await end_in_every_way(daemon.grpc_address, seeded, 200)  # loads what is loaded once
    base, base_bytes = at_rest(daemon), daemon.rss_bytes()
    runs = times(RUNS)
    before = daemon.metric("rrpa_streams_total")
    await end_in_every_way(daemon.grpc_address, seeded, runs)
    eventually(lambda: at_rest(daemon) == base, 10, what=f"as it was: {base}")
    # A call that never left its client is nobody's stream.
    assert runs * 0.6 < daemon.metric("rrpa_streams_total") - before <= runs
    growth = daemon.rss_bytes() - base_bytes
    print(f"{runs} streams: {growth / 1e6:.1f} MB more; {base[0]} descriptors, {base[1]} tasks")
    assert growth < GROWTH_BYTES
    assert "Traceback" not in daemon.stderr
