"""Any order of events: hypothesis plays clients, engines, kernel and clock against one broker."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rrpa_sidecar.config import Config
from rrpa_sidecar.control.broker import Broker, Labels, LiveStream, Reading
from rrpa_sidecar.control.lifecycle import HOLDS_SLOT, State
from rrpa_sidecar.errors import (
    CapacityExhausted,
    EngineLost,
    ModelNotFound,
    NoEngine,
    OffsetOutOfRange,
    StreamNotFound,
)
from rrpa_sidecar.metrics import Metrics
from rrpa_sidecar.pb.engine_pb2 import OpenStream
from rrpa_sidecar.shm.directory import PlainDirectory
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.stream.events import Data, Failed, Finished
from rrpa_sidecar.stream.text import whole_characters
from tests.control.engine import STREAM_BYTES, Cast, FakeClock, FakeEngine, Submitted

MODELS = ("a", "b")
TOKENS = st.sampled_from([b"", b"x", b"hello ", "é".encode(), b"\xf0\x9f", b"\x98\x80", b"\xff"])
PICK = st.integers(0, 1 << 30)
TIMEOUT_S = 30.0
WINDOW_S = 10.0


@dataclass(eq=False)
class Client:
    """One call, and what it got."""

    reading: Reading
    got: bytes = b""
    last: Finished | Failed | None = None

    @property
    def name(self) -> str:
        return self.reading.stream_id


class BrokerMachine(RuleBasedStateMachine):
    """The test knows what each engine wrote; each client must get exactly that from its offset."""

    @initialize()
    def begin(self) -> None:
        self.path = tempfile.mkdtemp(dir="/dev/shm", prefix="rrpa-test-")
        self.shm = PlainDirectory(self.path)
        self.clock = FakeClock()
        config = Config(
            shm_dir=self.path,
            stream_bytes=STREAM_BYTES,
            shm_bytes=5 * STREAM_BYTES,
            queue_limit=3,
            shm_timeout_s=TIMEOUT_S,
            resume_window_s=WINDOW_S,
        )
        self.broker = Broker(config, self.shm, "/b", Metrics(self.clock), self.clock)
        self.cast = Cast(self.broker, self.shm, self.clock)
        self.engines: list[FakeEngine] = []
        self.clients: list[Client] = []
        self.all: list[LiveStream] = []
        self.wrote: dict[str, bytes] = {}
        self.lost: dict[str, bytes] = {}  # what clients were told is all, though no end was written
        self.finished: set[str] = set()  # nothing more will be written
        self.complete: set[str] = set()  # and the end is in the log

    # Clients

    @rule(
        model=st.sampled_from(MODELS),
        priority=st.integers(-1, 1),
        late=st.booleans(),
        resumable=st.booleans(),
    )
    def open(self, model: str, priority: int, late: bool, resumable: bool) -> None:
        timeout_s = 1 if late else None
        try:
            reading = self.cast.open(
                model, priority=priority, timeout_s=timeout_s, resumable=resumable
            )
        except (CapacityExhausted, NoEngine, ModelNotFound):
            return
        self.clients.append(Client(reading))
        self.all.append(reading.stream)

    def whole(self, name: str) -> bytes:
        return self.wrote.get(name, b"").decode("utf-8", "replace").encode()

    @precondition(lambda self: self.all)
    @rule(pick=PICK, offset=st.integers(0, 20))
    def resume(self, pick: int, offset: int) -> None:
        stream = self.all[pick % len(self.all)]
        name, known = stream.stream_id, stream.state not in (State.GONE, State.LEAVING)
        readings = len(stream.readings)
        try:
            reading = self.broker.resume(name, offset, Labels("again", "s"))
        except StreamNotFound:
            assert not known
            return
        except OffsetOutOfRange:
            sure = whole_characters(self.wrote.get(name, b""), name in self.complete).data
            assert offset > len(sure)
            assert len(stream.readings) == readings
            return
        except CapacityExhausted:
            resumed = [each for each in self.clients if each.reading.resumed]
            assert sum(not each.reading.left for each in resumed) == 5 + 3, "the limit"
            return
        self.clients.append(Client(reading))
        if reading.stream not in self.all:
            self.all.append(reading.stream)

    @precondition(lambda self: self.all)
    @rule(pick=PICK)
    def stop(self, pick: int) -> None:
        stream = self.all[pick % len(self.all)]
        try:
            self.broker.cancel_stream(stream.stream_id)
        except StreamNotFound:
            assert stream.state in (State.GONE, State.LEAVING)

    @precondition(lambda self: self.clients)
    @rule(pick=PICK, limit=st.integers(1, 8))
    def poll(self, pick: int, limit: int) -> None:
        self.poll_one(self.clients[pick % len(self.clients)], limit)

    def poll_one(self, client: Client, limit: int) -> None:
        event = client.reading.poll(limit)
        if event is None:
            return
        assert client.last is None
        assert event.offset == client.reading.start_offset + len(client.got)
        if isinstance(event, Data):
            client.got += event.data
            return
        client.last = event
        if isinstance(event, Failed) and type(event.error) is EngineLost and event.offset:
            self.lost.setdefault(client.name, self.whole(client.name)[: event.offset])

    @precondition(lambda self: self.clients)
    @rule(pick=PICK)
    def leave(self, pick: int) -> None:
        client = self.clients.pop(pick % len(self.clients))
        client.reading.leave()
        client.reading.leave()
        assert client.reading.poll() is None
        self.judge(client)

    # Engines

    @precondition(lambda self: len(self.engines) < 3)
    @rule(models=st.sampled_from([("a",), ("b",), MODELS]), capacity=st.integers(1, 3))
    def attach(self, models: tuple[str, ...], capacity: int) -> None:
        self.join(self.cast.make(*models, capacity=capacity), [])

    def join(self, engine: FakeEngine, announced: list[OpenStream]) -> None:
        engine.on_cancel = self.told_to_stop
        engine.attach(*announced)
        self.engines.append(engine)

    def told_to_stop(self, engine: FakeEngine, name: str) -> None:
        assert engine.cancelled.count(name) == 1
        # Between Announce and its answer a stream may end.
        assert name not in self.complete or name in engine.announced

    def running(self) -> list[tuple[FakeEngine, str]]:
        return [
            (engine, each.stream_id)
            for engine in self.engines
            for each in engine.submitted
            if each.stream_id not in self.finished
        ]

    @precondition(lambda self: self.running())
    @rule(pick=PICK, token=TOKENS, rings=st.booleans())
    def write(self, pick: int, token: bytes, rings: bool) -> None:
        engine, name = self.running()[pick % len(self.running())]
        (engine.writers.get(name) or engine.begin(name)).write(token)
        self.wrote[name] = self.wrote.get(name, b"") + token
        if rings:
            self.broker.scan()

    @precondition(lambda self: self.running())
    @rule(pick=PICK, rings=st.booleans(), code=st.sampled_from([0, 0, 0, 13]))
    def finish(self, pick: int, rings: bool, code: int) -> None:
        engine, name = self.running()[pick % len(self.running())]
        self.end(engine, name, End(code=code, reason=1))
        if rings:
            self.broker.scan()

    def end(self, engine: FakeEngine, name: str, end: End) -> None:
        (engine.writers.get(name) or engine.begin(name)).finish(end)
        self.finished.add(name)
        self.complete.add(name)

    @precondition(lambda self: self.running())
    @rule(pick=PICK)
    def give_up(self, pick: int) -> None:
        engine, name = self.running()[pick % len(self.running())]
        if name in engine.writers:
            engine.writers[name].close()
        else:
            self.broker.rejected(engine.engine, name, 13, "no")
        self.finished.add(name)

    @precondition(lambda self: self.engines)
    @rule(pick=PICK)
    def obey_cancels(self, pick: int) -> None:
        engine = self.engines[pick % len(self.engines)]
        for name in engine.cancelled:
            if name in self.finished:
                continue
            if name in engine.writers:
                self.end(engine, name, End(reason=4))
            else:
                self.broker.rejected(engine.engine, name, 1, "cancelled")
                self.finished.add(name)

    @precondition(lambda self: self.engines)
    @rule(pick=PICK, lease_drops_first=st.booleans())
    def engine_dies(self, pick: int, lease_drops_first: bool) -> None:
        engine = self.engines.pop(pick % len(self.engines))
        if lease_drops_first:
            engine.tidy()
        self.broker.detach(engine.engine, "its connection broke")
        self.broker.scan()
        engine.tidy()
        self.finished |= {each.stream_id for each in engine.submitted}

    @precondition(lambda self: self.engines)
    @rule(pick=PICK, away_s=st.sampled_from([0, 0, 0.5, 1.5, 40]), noticed=st.booleans())
    def engine_comes_back(self, pick: int, away_s: float, noticed: bool) -> None:
        """Its call breaks; it attaches anew, with a new table, and announces what it has."""
        old = self.engines.pop(pick % len(self.engines))
        if noticed:
            self.broker.detach(old.engine, "its connection broke")
            self.clock.jump_s(away_s)
            self.broker.sweep()
        new = self.cast.make(*old.models, capacity=old.capacity)
        announced = []
        for each in old.submitted:
            name = each.stream_id
            if name in self.finished:
                continue
            if name in old.writers:
                new.writers[name] = old.writers[name]
            begun = name in old.writers
            resumable = each.labels.resumable
            announced.append(
                OpenStream(stream_id=name, model="a", resumable=resumable, begun=begun)
            )
        old.writers = {name: log for name, log in old.writers.items() if name not in new.writers}
        self.join(new, announced)
        if not noticed:
            self.broker.detach(old.engine, "its connection broke")
        for each in old.submitted:
            if each.stream_id in new.adopted:
                slot = new.adopted[each.stream_id]
                new.submitted.append(
                    Submitted(each.stream_id, slot, b"", each.labels, each.timeout_ms)
                )
                if each.stream_id in new.writers:
                    table = None if slot is None else new.table
                    new.writers[each.stream_id].move_to(table, slot or 0)
            elif each.stream_id in new.cancelled and each.stream_id not in self.finished:
                if each.stream_id in new.writers:
                    self.end(new, each.stream_id, End(reason=4))
                self.finished.add(each.stream_id)
        old.tidy()

    # The rest of the world

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.5, WINDOW_S, TIMEOUT_S]))
    def time_passes(self, seconds: float) -> None:
        self.clock.jump_s(seconds)

    @rule()
    def sweep(self) -> None:
        self.broker.sweep()

    # What holds always

    @invariant()
    def budget_and_gauges_are_in_range(self) -> None:
        if not hasattr(self, "broker"):
            return
        used = self.broker.shm_used_bytes()
        # What an engine brings along is charged once its file is seen, whether or not it fits.
        brought = [stream for stream in self.broker._streams.values() if stream.adopted]
        free = sum(not stream.charged_bytes for stream in brought)
        assert 0 <= used <= self.broker.shm_budget_bytes() + len(brought) * STREAM_BYTES
        assert 0 <= (self.broker.active_streams() - free) * STREAM_BYTES <= used
        assert 0 <= self.broker.queue_length() <= 3
        waiting = [s for s in self.all if s.state is State.QUEUED]
        assert len(waiting) == self.broker.queue_length()

    @invariant()
    def slots_are_unique_and_held_by_exactly_the_streams_that_should(self) -> None:
        for engine in getattr(self, "engines", ()):
            held = engine.engine.streams
            assert len({s.stream_id for s in held.values()}) == len(held) <= engine.capacity
            for slot, stream in held.items():
                assert stream.slot == slot
                assert stream.state in HOLDS_SLOT
            for stream in self.all:
                if stream.engine is engine.engine and stream.state in HOLDS_SLOT:
                    assert stream in engine.engine.held()

    @invariant()
    def clients_have_what_was_written_from_their_offset_on(self) -> None:
        for client in getattr(self, "clients", ()):
            self.judge(client)

    def judge(self, client: Client) -> None:
        whole, start = self.whole(client.name), client.reading.start_offset
        if client.name in self.lost:
            whole = self.lost[client.name]
        assert whole[start:].startswith(client.got)
        if isinstance(client.last, Finished):
            assert client.got == whole[start:]

    def teardown(self) -> None:
        if not hasattr(self, "broker"):
            return
        try:
            self.come_to_rest()
        finally:
            self.cast.close()
            shutil.rmtree(self.path)

    def come_to_rest(self) -> None:
        """Engines do their duty, clients read and leave: then nothing may be left."""
        for _ in range(20):
            for engine, name in self.running():
                self.end(engine, name, End(reason=1))
            self.clock.jump_s(6)
            self.broker.sweep()
            for client in list(self.clients):
                for _ in range(200):
                    self.poll_one(client, 64)
                self.judge(client)
                if client.last is not None:  # its file holds budget that others wait for
                    self.clients.remove(client)
                    client.reading.leave()
        assert self.clients == []
        for _ in range(2):
            self.clock.jump_s(TIMEOUT_S + 6)
            self.broker.sweep()
        assert all(stream.state is State.GONE for stream in self.all)
        assert self.broker.active_streams() == 0
        assert self.broker.queue_length() == 0
        assert self.broker.shm_used_bytes() == 0
        assert len(self.broker._kept) == 0
        assert [n for n in self.shm.names() if not n.startswith("rrpa_table_")] == []
        for engine in self.engines:
            engine.tidy()
            self.broker.detach(engine.engine, "the test ends")
        self.clock.jump_s(6)
        self.broker.sweep()
        assert self.shm.names() == []
        assert not self.broker.busy


TestBroker = BrokerMachine.TestCase
TestBroker.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
