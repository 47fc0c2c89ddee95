"""An engine in the test's own process: real table, real logs, and a link that remembers."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from rrpa_sidecar.control.broker import Broker, Labels, LiveStream, Reading
from rrpa_sidecar.control.engines import Engine
from rrpa_sidecar.pb.engine_pb2 import Hello, OpenStream
from rrpa_sidecar.pb.rrpa_pb2 import CreateStreamRequest
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import SegmentDirectory
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.table import TableWriter
from rrpa_sidecar.shm.writer import LogWriter
from rrpa_sidecar.stream.events import Data, Event, Failed

STREAM_BYTES = layout.MIN_STREAM_BYTES
STOP = 1
CANCELLED = 4


class FakeClock:
    """Time that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1_000_000_000

    def now_ns(self) -> int:
        return self.now

    def jump_s(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)


@dataclass
class Submitted:
    """What a Submit said."""

    stream_id: str
    slot: int
    request: bytes
    labels: Labels
    timeout_ms: int | None


@dataclass
class FakeEngine:
    """Implements EngineLink; the test is its model."""

    broker: Broker
    directory: SegmentDirectory
    clock: FakeClock
    models: tuple[str, ...]
    capacity: int
    name: str = "fake"
    submitted: list[Submitted] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    adopted: dict[str, int | None] = field(default_factory=dict)
    drains: int = 0
    announced: set[str] = field(default_factory=set)
    on_cancel: Callable[[FakeEngine, str], None] = lambda engine, stream_id: None
    closed: list[Exception] = field(default_factory=list)
    writers: dict[str, LogWriter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.table_id, self.nonce = os.urandom(16).hex(), os.urandom(16)
        self.table = TableWriter.create(self.directory, self.table_id, self.capacity, self.nonce)
        self.engine: Engine | None = None

    def hello(self, **changes: object) -> Hello:
        identity = self.directory.identity()
        fields = {
            "engine_name": self.name,
            "models": self.models,
            "capacity": self.capacity,
            "build": "test",
            "format_version": layout.VERSION,
            "table_id": self.table_id,
            "table_nonce": self.nonce,
            "shm_dir": identity.path,
            "shm_device": identity.st_dev,
            "boot_id": identity.boot_id,
        }
        return Hello(**{**fields, **changes})

    def attach(self, *announced: OpenStream) -> FakeEngine:
        self.announced = {each.stream_id for each in announced}
        hello = self.hello(announced=len(announced))
        self.engine = self.broker.attach(hello, self, announced)
        return self

    def again(self, broker: Broker | None = None, name: str = "") -> FakeEngine:
        """Return this engine as it attaches once more, with a table of its own and the same logs.

        It is another object, since the test may want to see what the old attachment is told.
        """
        made = FakeEngine(
            broker or self.broker,
            self.directory,
            self.clock,
            self.models,
            self.capacity,
            name or self.name,
        )
        made.writers = self.writers
        return made

    # EngineLink

    def submit(self, stream: LiveStream, timeout_ms: int | None) -> None:
        self.submitted.append(
            Submitted(stream.stream_id, stream.slot, stream.request, stream.labels, timeout_ms)
        )

    def adopt(self, stream_id: str, slot: int | None) -> None:
        assert stream_id not in self.adopted
        self.adopted[stream_id] = slot
        if stream_id in self.writers and slot is not None:
            self.writers[stream_id].move_to(self.table, slot)

    def draining(self) -> None:
        self.drains += 1

    def cancel(self, stream_id: str) -> None:
        self.cancelled.append(stream_id)
        self.on_cancel(self, stream_id)

    def release(self, stream_id: str) -> None:
        self.released.append(stream_id)

    def close(self, why: Exception) -> None:
        self.closed.append(why)

    # What the engine does

    def begin(self, stream_id: str) -> LogWriter:
        slots = {each.stream_id: each.slot for each in self.submitted}
        slot = {**slots, **self.adopted}[stream_id]
        writer = LogWriter.create(
            self.directory,
            stream_id,
            stream_bytes=STREAM_BYTES,
            table=None if slot is None else self.table,
            slot=slot or 0,
            clock=self.clock,
        )
        self.writers[stream_id] = writer
        return writer

    def write(self, stream: Reading, token: bytes) -> None:
        """Commit a token and ring, which is what `scan` stands for."""
        (self.writers.get(stream.stream_id) or self.begin(stream.stream_id)).write(token)
        self.broker.scan()

    def finish(self, stream: Reading, end: End = End(reason=STOP)) -> None:  # noqa: B008
        (self.writers.get(stream.stream_id) or self.begin(stream.stream_id)).finish(end)
        self.broker.scan()

    def obey_cancels(self) -> None:
        """End what was cancelled, as the engine's library does."""
        for stream_id in self.cancelled:
            writer = self.writers.get(stream_id)
            if writer is None:
                self.broker.rejected(self.engine, stream_id, 1, "cancelled")
            elif writer._lease.held:
                writer.finish(End(reason=CANCELLED))
        self.broker.scan()

    def die(self) -> None:
        """What the kernel does with a killed engine: leases dropped, call ended."""
        for writer in self.writers.values():
            writer.close()
        self.table.close()
        self.broker.detach(self.engine, "its connection broke")

    def tidy(self) -> None:
        for writer in self.writers.values():
            writer.close()
        self.table.close()


class Cast:
    """The engines and callers of one test."""

    def __init__(self, broker: Broker, directory: SegmentDirectory, clock: FakeClock) -> None:
        self._broker = broker
        self._directory = directory
        self._clock = clock
        self.engines: list[FakeEngine] = []

    def engine(self, *models: str, capacity: int = 2, name: str = "fake") -> FakeEngine:
        """Attach an engine."""
        return self.make(*models, capacity=capacity, name=name).attach()

    def make(self, *models: str, capacity: int = 2, name: str = "fake") -> FakeEngine:
        """Return an engine that is not attached yet."""
        made = FakeEngine(
            self._broker, self._directory, self._clock, models or ("test",), capacity, name
        )
        self.engines.append(made)
        return made

    def open(
        self,
        model: str = "test",
        *,
        priority: int = 0,
        timeout_s: float | None = None,
        request_id: str = "mine",
        resumable: bool = False,
        **fields: object,
    ) -> Reading:
        """Open a stream as a front end does."""
        request = CreateStreamRequest(model=model, **fields).SerializeToString()
        labels = Labels(request_id, "s", priority, resumable=resumable)
        return self._broker.open(request, labels, timeout_s)

    def close(self) -> None:
        for engine in self.engines:
            engine.tidy()


def read_all(stream: Reading, limit_bytes: int = 65536) -> tuple[bytes, Event | None]:
    """Poll until there is nothing new; return the bytes and the last event, if it came."""
    got = b""
    while (event := stream.poll(limit_bytes)) is not None:
        if not isinstance(event, Data):
            assert stream.poll() is None
            return got, event
        assert event.data
        if got or event.offset == 0:  # a resumed stream may begin inside of a character
            event.data.decode()
        got += event.data
    return got, None


def failure(event: object) -> Exception:
    """Return the error of an event that must be Failed."""
    assert isinstance(event, Failed), event
    return event.error


def streams_in(shm: SegmentDirectory) -> list[str]:
    """Return the names of the streams' files."""
    return [name for name in shm.names() if not name.startswith("rrpa_table_")]


def assert_at_rest(broker: Broker) -> None:
    """All gauges are 0 and nothing has to be swept."""
    assert broker.active_streams() == 0
    assert broker.queue_length() == 0
    assert broker.shm_used_bytes() == 0
    assert not broker.busy
