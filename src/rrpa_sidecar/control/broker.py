"""Between front ends and engines: takes streams in, and sees each through its life.

Pure logic but for the shared-memory calls: no asyncio, no gRPC, no locks. Everything runs on
the thread of one event loop. `gate.py` says who may come in, `dispatch.py` who runs and who
waits, `watch.py` what the logs say, `pump.py` when to look; `attach_service.py` speaks to engines.

The way of a token: an engine rings → `scan` reads each engine's table, one read and one more for
every 128 streams → the front end's short way takes what moved, from the table alone or with one
read of the log → one write for each connection. A stream's first token, its end, and whatever the
short way cannot take wake the front end instead, which polls: one read of the log's header, one
of its data.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable
from typing import Protocol

from rrpa_sidecar.clock import Clock
from rrpa_sidecar.control.admission import Queue
from rrpa_sidecar.control.dispatch import Dispatch
from rrpa_sidecar.control.engines import Engine, EngineLink, Engines, ModelInfo
from rrpa_sidecar.control.gate import Gate, Limits
from rrpa_sidecar.control.hello import check_hello
from rrpa_sidecar.control.leftovers import Leftovers
from rrpa_sidecar.control.lifecycle import (
    GENERATES,
    HOLDS_SLOT,
    TOLD_TO_STOP,
    State,
    Step,
    next_state,
)
from rrpa_sidecar.control.live import (
    SILENCE,
    Labels,
    LiveStream,
    Timing,
)
from rrpa_sidecar.control.requests import model_of
from rrpa_sidecar.control.short_way import Moves, NoShortWay, ShortWay
from rrpa_sidecar.control.watch import Watch
from rrpa_sidecar.errors import CorruptLog, DeadlinePassed, EngineStatus
from rrpa_sidecar.metrics import Metrics
from rrpa_sidecar.pb.engine_pb2 import Hello
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import SegmentDirectory
from rrpa_sidecar.shm.reclaim import Reclaim

__all__ = ["Broker", "Labels", "LiveStream", "ModelInfo", "Timing"]

log = logging.getLogger(__name__)


class Settings(Limits, Protocol):
    """The part of `Config` that a broker needs."""

    @property
    def engine_lost_timeout_s(self) -> float: ...


class Broker:
    """All streams and all engines of one sidecar. Also the `Gauges` of its metrics."""

    def __init__(
        self,
        config: Settings,
        directory: SegmentDirectory,
        bell_path: str,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self.bell_path = bell_path
        self.stream_bytes = config.stream_bytes
        self.on_ready_change: Callable[[bool], None] | None = None
        self.on_busy: Callable[[], None] | None = None
        """Called when sweeps are needed; calls while they run already are harmless."""
        self.short_way: ShortWay = NoShortWay()
        """Meets the streams that have called `LiveStream.follow`; set before anything moves."""
        self._directory = directory
        self._metrics = metrics
        self._clock = clock
        self._ready = False
        self._active = 0
        self._engines = Engines()
        self._queue = Queue()
        self._gate = Gate(config, directory, self._engines, self._queue)
        self._budget = self._gate.budget
        self._dispatch = Dispatch(
            self._queue, self._gate, self._engines, metrics, clock, self._advance
        )
        self._leftovers = Leftovers(directory, clock)
        self._streams: dict[str, LiveStream] = {}  # all that are not GONE
        lost_after_ns = int(config.engine_lost_timeout_s * 1e9)
        self._watch = Watch(directory, config.stream_bytes, lost_after_ns, clock, self._advance)

    # --- For front ends -------------------------------------------------------------------

    def open(self, request: bytes, labels: Labels, timeout_s: float | None) -> LiveStream:
        """Admit a request and return its stream. Never waits: the stream may, in the queue.

        request: a serialized CreateStreamRequest; the engine gets these bytes.
        timeout_s: how long the caller will still wait; None: for ever.

        Raises:
          InvalidRequest, ModelNotFound, NoEngine, Draining, CapacityExhausted, DeadlinePassed
        """
        model = model_of(request)
        now_ns = self._clock.now_ns()
        deadline_ns = None
        if timeout_s is not None and math.isfinite(timeout_s):
            if timeout_s <= 0:
                raise DeadlinePassed("the deadline had passed when the request arrived")
            deadline_ns = now_ns + int(timeout_s * 1e9)
        self._gate.check_request(model, len(request))
        # From the system's generator: whoever guesses a name could read another's answer.
        stream_id = secrets.token_hex(16)
        meter = self._metrics.model(model)
        stream = LiveStream(self, stream_id, model, labels, request, Timing(now_ns), meter)
        self._streams[stream_id] = stream
        self._dispatch.wait(stream, deadline_ns)
        self._tell_busy()
        self._dispatch.run()
        return stream

    def now_ns(self) -> int:
        """Return the clock that `LiveStream.timing` is in."""
        return self._clock.now_ns()

    def polled(self, stream: LiveStream) -> None:
        """Take note of what a front end's poll has found out."""
        self._watch.polled(stream)

    def leave(self, stream: LiveStream) -> None:
        """See `LiveStream.leave`."""
        if stream.left:
            return
        stream.left = True
        stream.waker = None
        if stream.engine is not None:
            stream.engine.put(stream, None)
        if stream.reader is not None:
            stream.reader.distrust()
        stream.source = SILENCE
        # An end that nobody has read yet needs no Cancel, and must not get one.
        self._watch.look_for_end(stream)
        self._advance(stream, Step.LEAVE)
        self._tell_busy()

    def models(self) -> list[ModelInfo]:
        """Return the models that can be asked for now, sorted by name."""
        return self._engines.models()

    def drain(self) -> None:
        """Refuse new streams and new engines from now on; those that are there go on."""
        self._gate.draining = True
        self._tell_ready()

    @property
    def ready(self) -> bool:
        """Whether a new stream has somewhere to go."""
        return len(self._engines) > 0 and not self._gate.draining

    # --- For the pump ---------------------------------------------------------------------

    def scan(self) -> bool:
        """Find the streams that moved: the short way takes them, or their front ends are woken.

        Returns whether any moved.
        """
        news = False
        try:
            for engine in self._engines.all():
                blocks = self._poll_table(engine)
                if blocks and not news:
                    news = True
                    self.short_way.begin_step()
                for moves in blocks:
                    for slot, word in self.short_way.take(engine.places, moves):
                        stream = engine.streams.get(slot)
                        if stream is not None:
                            stream.word = word
                            self._watch.moved(stream)
        finally:  # after a fault, too: what was taken is counted, and must leave before all else
            if news:
                self.short_way.end_step()
        return news

    def sweep(self) -> bool:
        """Scan, and do all that no bell announces: deadlines, lost engines, slow clients.

        Returns whether any stream had moved.
        """
        moved = self.scan()
        now_ns = self._clock.now_ns()
        self._dispatch.refuse_late(now_ns)
        self._watch.turn()
        self._leftovers.sweep(now_ns)
        return moved

    @property
    def busy(self) -> bool:
        """Whether sweeps are needed: streams live, or files wait for their removal."""
        return bool(self._streams) or len(self._leftovers) > 0

    @property
    def hurried(self) -> bool:
        """Whether the next sweep should come soon: somebody waits for what it will find."""
        return self._watch.hurried or len(self._queue) > 0 or self._leftovers.hurried

    # --- For the engines' service ---------------------------------------------------------

    def attach(self, hello: Hello, link: EngineLink) -> Engine:
        """Take in an engine; streams may be submitted to `link` before this returns.

        Raises:
          Draining, CapacityExhausted, InvalidRequest, AttachRefused
        """
        self._gate.check_engine()
        offer = check_hello(hello, self._directory)
        engine = Engine(offer, link)
        self._engines.add(engine)
        for model in offer.models:
            self._metrics.add_model(model)
        models = ",".join(offer.models)
        log.info(
            "engine %s attached: models %s, capacity %d, build %a",
            *(offer.name, models, offer.capacity, offer.build),
        )
        self._tell_ready()
        self._dispatch.run()
        return engine

    def rejected(self, engine: Engine, stream_id: str, code: int, message: str) -> None:
        """End a stream that `engine` will not begin. Ids of streams it does not hold are ignored.

        Raises:
          StreamMisuse: its log was seen already, so it has begun.
        """
        stream = engine.stream(stream_id)
        if stream is not None:
            self._advance(stream, Step.REJECT)
            stream.fail(EngineStatus(code, message))

    def detach(self, engine: Engine, why: str) -> None:
        """Let go of an engine whose Attach call ended. May be called again, without effect."""
        if not engine.attached:
            return
        engine.attached = False
        engine.lost_ns = self._clock.now_ns()
        engine.lost_why = f"engine {engine.name} was lost ({why})"
        self._engines.remove(engine)
        for model in engine.offer.models:
            self._metrics.remove_model(model)
        streams = list(engine.streams.values())
        log.info("engine %s detached: %s; it had %d streams", engine.name, why, len(streams))
        for stream in streams:
            self._advance(stream, Step.ENGINE_GONE)
        engine.table.close()
        self._leftovers.add(layout.table_name(engine.offer.table_id), lambda _: None)
        self._leftovers.add_unborn()
        for stream in streams:
            if stream.state is State.LOSING:
                self._watch.look(stream)
        self._dispatch.refuse_unserved()
        self._tell_ready()
        self._tell_busy()
        self._dispatch.run()

    # --- Gauges: read by the metrics' thread ----------------------------------------------

    def active_streams(self) -> int:
        return self._active

    def queue_length(self) -> int:
        return len(self._queue)

    def engines(self) -> int:
        return len(self._engines)

    def shm_used_bytes(self) -> int:
        return self._budget.taken_bytes

    def shm_budget_bytes(self) -> int:
        return self._budget.limit_bytes

    def shm_free_bytes(self) -> int:
        return self._directory.space().free_bytes

    # --- Steps ----------------------------------------------------------------------------

    def _advance(self, stream: LiveStream, step: Step) -> None:
        """Take one step of the life table, with all that belongs to it."""
        old, new = stream.state, next_state(stream.state, step)
        if new is old:
            return
        stream.state = new
        self._watch.entered(stream, old, new)
        if old is State.QUEUED:
            self._dispatch.remove(stream)
        if new is State.SUBMITTED:
            self._active += 1
        engine = stream.engine
        if engine is not None and old in GENERATES and new in TOLD_TO_STOP:
            engine.link.cancel(stream.stream_id)
        freed = engine is not None and old in HOLDS_SLOT and new not in HOLDS_SLOT
        if engine is not None and freed:
            engine.free_slot(stream.slot, stream)
        if new is State.GONE:
            self._bury(stream, engine)
        if freed:
            self._dispatch.run()

    def _bury(self, stream: LiveStream, engine: Engine | None) -> None:
        stream_id = stream.stream_id
        del self._streams[stream_id]
        if stream.log is not None:
            stream.log.close()
        if engine is None:
            return
        self._active -= 1

        def on_done(outcome: Reclaim) -> None:
            if outcome is Reclaim.DENIED and engine.attached:
                engine.link.release(stream_id)
            self._budget.give_back()
            self._dispatch.run()

        self._leftovers.add(layout.log_name(stream_id), on_done)

    def _poll_table(self, engine: Engine) -> list[Moves]:
        try:
            return engine.table.poll()
        except CorruptLog as error:
            self._expel(engine, error)
            return []

    def _expel(self, engine: Engine, error: CorruptLog) -> None:
        log.error("engine %s has a corrupt table: %s", engine.name, error)
        engine.link.close(error)
        self.detach(engine, "its table is corrupt")

    def _tell_ready(self) -> None:
        if self.ready is not self._ready:
            self._ready = self.ready
            if self.on_ready_change is not None:
                self.on_ready_change(self._ready)

    def _tell_busy(self) -> None:
        if self.on_busy is not None and self.busy:
            self.on_busy()
