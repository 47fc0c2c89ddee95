"""One connection of the batched front end, without any socket: actions in, what it did out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from rrpa_sidecar.clock import SystemClock
from rrpa_sidecar.config import Config
from rrpa_sidecar.errors import Draining, EngineLost
from rrpa_sidecar.frontend.batched.connection import Connection
from rrpa_sidecar.frontend.batched.server import BatchedServer
from rrpa_sidecar.frontend.health import Health
from rrpa_sidecar.metrics import Metrics
from tests.frontend.fakes import FakeBroker
from tests.harness.raw_h2 import GOAWAY
from tests.hostile.frames import INTERNAL_ERROR
from tests.hostile.grammar import Action


class CountingLoop(asyncio.SelectorEventLoop):
    """A loop that knows its timers, and keeps what its handler was told."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead_s = 0.0
        self.timers: list[asyncio.TimerHandle] = []
        self.faults: list[str] = []
        self.set_exception_handler(lambda loop, context: self.faults.append(repr(context)))

    def call_at(self, when: float, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        timer = super().call_at(when, *args, **kwargs)
        self.timers.append(timer)
        return timer

    def time(self) -> float:
        return super().time() + self._ahead_s

    def jump(self, seconds: float) -> None:
        """Let time pass at once."""
        self._ahead_s += seconds

    def live_timers(self) -> list[asyncio.TimerHandle]:
        """Return the timers that will still fire."""
        self.timers = [t for t in self.timers if not t.cancelled() and t.when() > self.time()]
        return self.timers

    def turns(self, count: int = 3) -> None:
        """Run what is ready now, and what that makes ready."""
        for _ in range(count):
            self.call_soon(self.stop)
            self.run_forever()


class FakeTransport(asyncio.Transport):
    """Takes what is written; its buffer is as full as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.out = bytearray()
        self.buffered = 0
        self.reading = True
        self.ended = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def write(self, data: Any) -> None:
        assert not self.ended, "nothing is written after the end"
        self.out += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.ended = True


class Faults(logging.Handler):
    """Keeps every log line that has a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(self.format(record))


@contextlib.contextmanager
def playground() -> Iterator[tuple[CountingLoop, Faults]]:
    """Return a loop of our own, and whatever is logged with a traceback."""
    loop, faults = CountingLoop(), Faults()
    logging.getLogger("rrpa_sidecar").addHandler(faults)
    try:
        yield loop, faults
    finally:
        logging.getLogger("rrpa_sidecar").removeHandler(faults)
        loop.close()


class Driver:
    """One life of a connection. `live` fails if anything is wrong during or after it."""

    def __init__(self, loop: CountingLoop, faults: Faults) -> None:
        self._loop = loop
        self._faults = faults
        self.broker = FakeBroker()
        health = Health()
        config = Config(queue_limit=0, shm_bytes=2**24 * 8, queue_bytes=2**16)
        self._server = BatchedServer(
            config, self.broker, Metrics(), SystemClock(), health  # type: ignore[arg-type]
        )  # fmt: skip
        self._server.streams_limit = 8

    def begin(self) -> tuple[Connection, FakeTransport]:
        """Return a connection that has just been made."""
        asyncio._set_running_loop(self._loop)
        connection, transport = Connection(self._server), FakeTransport()
        asyncio._set_running_loop(None)
        connection.connection_made(transport)
        return connection, transport

    def live(self, actions: list[Action], *, tame: bool = False) -> None:
        """Do it all.

        tame: the peer does nothing wrong, so its connection must live.
        """
        connection, transport = self.begin()
        for name, value in actions:
            if transport.ended:
                break
            getattr(self, f"_{name}")(connection, transport, value)
        self._loop.turns()
        asyncio._set_running_loop(self._loop)
        died = transport.ended
        assert not (died and tame), "a peer that does what it may was closed"
        if died:
            connection.data_received(b"more after the end")
        connection.connection_lost(None)
        asyncio._set_running_loop(None)
        self._loop.turns()
        self._check(connection, bytes(transport.out), died)
        assert not self._loop.live_timers(), self._loop.live_timers()

    def _check(self, connection: Connection, out: bytes, died: bool) -> None:
        assert not self._loop.faults, self._loop.faults
        assert not self._faults.found, self._faults.found[0]
        assert not self._server.connections
        assert self._server.held.bytes == 0
        assert len(connection._calls) == 0
        if not died:  # an end in the middle of a read leaves the rest of it undone
            kept = [each for each, stream in connection._h2.streams.items() if stream.closed]
            assert not kept, f"streams that have ended are kept: {kept}"
        assert all(stream.left == 1 for stream in self.broker.streams)
        while out:
            size, kind = int.from_bytes(out[:3], "big"), out[3]
            assert len(out) >= 9 + size, "whole frames"
            if kind == GOAWAY:
                assert int.from_bytes(out[13:17], "big") != INTERNAL_ERROR
            out = out[9 + size :]

    # --- Actions --------------------------------------------------------------------------

    def _bytes(self, connection: Connection, transport: FakeTransport, raw: Any) -> None:
        if not transport.reading:
            self._loop.turns(8)
        connection.data_received(raw)

    def _turn(self, connection: Connection, transport: FakeTransport, count: int) -> None:
        self._loop.turns(count)

    def _streams(self, at: int) -> list[Any]:
        open_ones = [stream for stream in self.broker.streams if not stream.left]
        return open_ones[at % len(open_ones) :][:1] if open_ones else []

    def _data(self, connection: Connection, transport: FakeTransport, at: int) -> None:
        for stream in self._streams(at):
            stream.data(b"x" * (1, 5, 20_000, 70_000)[at % 4])

    def _finish(self, connection: Connection, transport: FakeTransport, at: int) -> None:
        for stream in self._streams(at):
            stream.finish()

    def _fail(self, connection: Connection, transport: FakeTransport, at: int) -> None:
        for stream in self._streams(at):
            stream.fail(EngineLost("gone"))

    def _wake(self, connection: Connection, transport: FakeTransport, at: int) -> None:
        for stream in self._streams(at):
            if stream.waker:
                stream.waker()

    def _pause(self, connection: Connection, transport: FakeTransport, at: int) -> None:
        transport.buffered = 2**18 * (1 + at)
        connection.pause_writing()

    def _resume(self, connection: Connection, transport: FakeTransport, at: int) -> None:
        transport.buffered = 0
        connection.resume_writing()

    def _drain(self, connection: Connection, transport: FakeTransport, at: int) -> None:
        if at == 0:
            connection.drain()

    def _end_all(self, connection: Connection, transport: FakeTransport, at: int) -> None:
        if at == 0:
            connection.end_all(lambda offset, resumable: Draining("over"))

    def _jump(self, connection: Connection, transport: FakeTransport, at: int) -> None:
        self._loop.jump((5, 9, 10, 20, 30, 50, 4000, 1e6)[at])
        self._loop.turns()

    def _wait(self, connection: Connection, transport: FakeTransport, at: int) -> None:
        self._loop.jump((0.001, 0.02, 0.02, 0.3)[at % 4])
        self._loop.turns()
