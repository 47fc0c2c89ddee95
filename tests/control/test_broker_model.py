"""Any order of events: hypothesis plays clients, engines, kernel and clock against one broker."""

from __future__ import annotations

import shutil
import tempfile

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rrpa_sidecar.config import Config
from rrpa_sidecar.control.broker import Broker, LiveStream, Reading
from rrpa_sidecar.control.lifecycle import HOLDS_SLOT, State
from rrpa_sidecar.errors import CapacityExhausted, ModelNotFound, NoEngine
from rrpa_sidecar.metrics import Metrics
from rrpa_sidecar.shm.directory import PlainDirectory
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.stream.events import Data, Failed, Finished
from tests.control.engine import STREAM_BYTES, Cast, FakeClock, FakeEngine

MODELS = ("a", "b")
TOKENS = st.sampled_from([b"", b"x", b"hello ", "é".encode(), b"\xf0\x9f", b"\x98\x80", b"\xff"])
PICK = st.integers(0, 1 << 30)


class BrokerMachine(RuleBasedStateMachine):
    """The test knows what each engine wrote; each client must get a prefix of exactly that."""

    @initialize()
    def begin(self) -> None:
        self.path = tempfile.mkdtemp(dir="/dev/shm", prefix="rrpa-test-")
        self.shm = PlainDirectory(self.path)
        self.clock = FakeClock()
        config = Config(
            shm_dir=self.path, stream_bytes=STREAM_BYTES, shm_bytes=5 * STREAM_BYTES, queue_limit=3
        )
        self.broker = Broker(config, self.shm, "/b", Metrics(self.clock), self.clock)
        self.cast = Cast(self.broker, self.shm, self.clock)
        self.engines: list[FakeEngine] = []
        self.clients: list[Reading] = []
        self.all: list[LiveStream] = []
        self.got: dict[str, bytes] = {}
        self.ended: dict[str, object] = {}
        self.wrote: dict[str, bytes] = {}
        self.finished: set[str] = set()  # nothing more will be written
        self.complete: set[str] = set()  # and the end is in the log

    # Clients

    @rule(model=st.sampled_from(MODELS), priority=st.integers(-1, 1), late=st.booleans())
    def open(self, model: str, priority: int, late: bool) -> None:
        try:
            stream = self.cast.open(model, priority=priority, timeout_s=1 if late else None)
        except (CapacityExhausted, NoEngine, ModelNotFound):
            return
        self.clients.append(stream)
        self.all.append(stream.stream)
        self.got[stream.stream_id] = b""

    @precondition(lambda self: self.clients)
    @rule(pick=PICK, limit=st.integers(1, 8))
    def poll(self, pick: int, limit: int) -> None:
        self.poll_one(self.clients[pick % len(self.clients)], limit)

    def poll_one(self, stream: Reading, limit: int) -> None:
        event = stream.poll(limit)
        name = stream.stream_id
        if isinstance(event, Data):
            assert name not in self.ended
            assert event.offset == len(self.got[name])
            self.got[name] += event.data
            event.data.decode()
        elif event is not None:
            assert name not in self.ended
            assert event.offset == len(self.got[name])
            self.ended[name] = event

    @precondition(lambda self: self.clients)
    @rule(pick=PICK)
    def leave(self, pick: int) -> None:
        stream = self.clients.pop(pick % len(self.clients))
        before = self.cancels(stream)
        stream.leave()
        stream.leave()
        assert stream.poll() is None
        if stream.stream_id in self.complete:
            assert self.cancels(stream) == before

    def cancels(self, stream: Reading) -> int:
        return sum(engine.cancelled.count(stream.stream_id) for engine in self.engines)

    # Engines

    @precondition(lambda self: len(self.engines) < 3)
    @rule(models=st.sampled_from([("a",), ("b",), MODELS]), capacity=st.integers(1, 3))
    def attach(self, models: tuple[str, ...], capacity: int) -> None:
        self.engines.append(self.cast.engine(*models, capacity=capacity))

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
        (engine.writers.get(name) or engine.begin(name)).finish(End(code=code, reason=1))
        self.finished.add(name)
        self.complete.add(name)
        if rings:
            self.broker.scan()

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
                engine.writers[name].finish(End(reason=4))
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

    # The rest of the world

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.5]))
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
        assert 0 <= used <= self.broker.shm_budget_bytes()
        assert 0 <= self.broker.active_streams() * STREAM_BYTES <= used
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
                    assert held[stream.slot] is stream

    @invariant()
    def clients_have_a_prefix_of_what_was_written_for_them(self) -> None:
        for name, got in getattr(self, "got", {}).items():
            whole = self.wrote.get(name, b"").decode("utf-8", "replace").encode()
            assert whole.startswith(got)
            if isinstance(self.ended.get(name), Finished):
                assert got == whole

    @invariant()
    def nobody_is_cancelled_twice_or_after_the_end(self) -> None:
        for engine in getattr(self, "engines", ()):
            assert len(set(engine.cancelled)) == len(engine.cancelled)
            for name in engine.cancelled:
                assert not isinstance(self.ended.get(name), (Finished, Failed))

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
            for engine in list(self.engines):
                for each in list(engine.submitted):
                    if each.stream_id not in self.finished:
                        name = each.stream_id
                        (engine.writers.get(name) or engine.begin(name)).finish(End(reason=1))
                        self.finished.add(name)
            self.clock.jump_s(6)
            self.broker.sweep()
            for stream in list(self.clients):
                for _ in range(200):
                    self.poll_one(stream, 64)
                if stream.stream_id in self.ended:  # its file holds budget that others wait for
                    self.clients.remove(stream)
                    stream.leave()
        assert self.clients == []
        self.clock.jump_s(6)
        self.broker.sweep()
        assert all(stream.state is State.GONE for stream in self.all)
        assert self.broker.active_streams() == 0
        assert self.broker.queue_length() == 0
        assert self.broker.shm_used_bytes() == 0
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
