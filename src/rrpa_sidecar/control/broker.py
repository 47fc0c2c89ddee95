"""Between front ends and engines: takes streams in, and sees each through its life.

Pure logic but for the shared-memory calls: no asyncio, no gRPC, no locks. Everything runs on
the thread of one event loop. The broker puts the parts together and speaks for them: `gate.py`
says who may come in, `dispatch.py` who runs and who waits, `watch.py` what the logs say,
`readers.py` who reads and who is waited for, `finding.py` what an id of earlier times names,
`resuming.py` what clients ask of it, `attachments.py` which engines there are, `adoption.py` what
they bring along, `burial.py` and `kept.py` what stays when all is over, `pump.py` when to look.
`lifecycle.py` is a stream's life, and `steps.py` takes its steps; `attach_service.py` speaks to
engines.

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
from collections.abc import Callable, Sequence
from typing import Protocol

from rrpa_sidecar.clock import Clock
from rrpa_sidecar.control.admission import Queue
from rrpa_sidecar.control.adoption import Adoption
from rrpa_sidecar.control.attachments import Attachments
from rrpa_sidecar.control.burial import Burial
from rrpa_sidecar.control.dispatch import Dispatch
from rrpa_sidecar.control.engines import Engine, EngineLink, Engines, ModelInfo
from rrpa_sidecar.control.finding import Finder
from rrpa_sidecar.control.gate import Gate, Limits
from rrpa_sidecar.control.kept import KeptStreams
from rrpa_sidecar.control.leftovers import Leftovers
from rrpa_sidecar.control.lifecycle import State, Step
from rrpa_sidecar.control.live import Labels, LiveStream, Timing
from rrpa_sidecar.control.orphans import Orphans
from rrpa_sidecar.control.readers import Readers
from rrpa_sidecar.control.reading import Reading
from rrpa_sidecar.control.requests import model_of
from rrpa_sidecar.control.resuming import CANCELLED, Resuming
from rrpa_sidecar.control.short_way import Moves, NoShortWay, ShortWay
from rrpa_sidecar.control.stalls import Stalls
from rrpa_sidecar.control.steps import Steps
from rrpa_sidecar.control.watch import Watch
from rrpa_sidecar.errors import (
    CorruptLog,
    DeadlinePassed,
    Draining,
    EngineStatus,
    RRPAError,
)
from rrpa_sidecar.metrics import Metrics
from rrpa_sidecar.pb.engine_pb2 import Hello, OpenStream
from rrpa_sidecar.shm.directory import SegmentDirectory
from rrpa_sidecar.status import Code
from rrpa_sidecar.stream.events import Finished

__all__ = ["Broker", "Labels", "LiveStream", "ModelInfo", "Reading", "Timing"]

log = logging.getLogger(__name__)


class Settings(Limits, Protocol):
    """The part of `Config` that a broker needs."""

    @property
    def engine_lost_timeout_s(self) -> float: ...
    @property
    def stall_timeout_s(self) -> float: ...
    @property
    def resume_window_s(self) -> float: ...
    @property
    def shm_timeout_s(self) -> float: ...
    @property
    def max_open_calls(self) -> int: ...


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
        """Meets the streams that have called `Reading.follow`; set before anything moves."""
        self._directory = directory
        self._metrics = metrics
        self._clock = clock
        self._ready = False
        self._engines = Engines()
        self._queue = Queue()
        self._gate = Gate(config, directory, self._engines, self._queue)
        self._budget = self._gate.budget
        self._dispatch = Dispatch(
            self._queue, self._gate, self._engines, metrics, clock, self._advance
        )
        self._leftovers = Leftovers(directory, clock)
        self._kept = KeptStreams(
            self._leftovers, self._budget, clock, config.shm_timeout_s, self._dispatch.run
        )
        self._gate.evict = self._kept.evict
        self._streams: dict[str, LiveStream] = {}  # all that are not GONE
        self._burial = Burial(
            self._streams, self._leftovers, self._kept, self._budget, metrics.totals
        )
        lost_after_ns = int(config.engine_lost_timeout_s * 1e9)
        self._watch = Watch(
            directory,
            config.stream_bytes,
            lost_after_ns,
            clock,
            self._advance,
            self._show,
            self._quarantine,
        )
        self._stalls = Stalls(int(config.stall_timeout_s * 1e9), self._watch.look)
        self._readers = Readers(
            self._watch, clock, config.resume_window_s, config.max_open_calls, self._advance
        )
        self._finder = Finder(
            directory,
            self._streams,
            self._kept,
            self._watch,
            clock,
            config.resume_window_s,
            self._advance,
        )
        adoption = Adoption(
            directory,
            self._streams,
            self._finder,
            self._readers,
            self._watch,
            self._leftovers,
            self._budget,
            config.max_open_calls,
            metrics.totals,
            self._advance,
        )
        self._attachments = Attachments(
            directory,
            self._engines,
            self._gate,
            self._dispatch,
            adoption,
            self._watch,
            self._leftovers,
            metrics,
            clock,
            self._advance,
            self._changed,
        )
        self._steps = Steps(
            self._streams,
            self._dispatch,
            self._attachments,
            adoption,
            self._watch,
            self._readers,
            self._finder,
            self._burial,
        )
        self._resuming = Resuming(
            self._finder, self._readers, self._watch, metrics, clock, self._advance
        )
        self._orphans = Orphans(
            directory,
            round(config.shm_timeout_s * 1e9),
            clock.now_ns(),
            self._burial.knows,
            self._burial.keep_orphan,
            self._burial.count,
        )

    # --- For front ends -------------------------------------------------------------------

    def open(self, request: bytes, labels: Labels, timeout_s: float | None) -> Reading:
        """Admit a request and return its stream. Never waits: the stream may, in the queue.

        request: a serialized CreateStreamRequest; the engine gets these bytes.
        timeout_s: how long the caller will still wait; None: for ever.

        Raises:
          InvalidRequest, ModelNotFound, NoEngine, Draining, CapacityExhausted, DeadlinePassed
        """
        model = model_of(request)
        deadline_ns = None
        if timeout_s is not None and math.isfinite(timeout_s):
            if timeout_s <= 0:
                raise DeadlinePassed("the deadline had passed when the request arrived")
            deadline_ns = self._clock.now_ns() + int(timeout_s * 1e9)
        self._gate.check_request(model, len(request))
        # From the system's generator: whoever guesses a name could read another's answer.
        stream = LiveStream(self._clock, secrets.token_hex(16), model, labels, request=request)
        self._streams[stream.stream_id] = stream
        reading = Reading(self, stream, labels, stream.timing, self._metrics.model(model))
        self._readers.join(reading)
        self._dispatch.wait(stream, deadline_ns)
        self._tell_busy()
        self._dispatch.run()
        return reading

    def resume(self, stream_id: str, offset: int, labels: Labels) -> Reading:
        """Let one more client read a stream, from a byte of the answer on. Never waits.

        That the stream has fewer bytes may become known only later: then the reading fails.

        Raises:
          InvalidRequest, StreamNotFound, OffsetOutOfRange, Draining, CapacityExhausted, CorruptLog
        """
        if self._gate.draining:
            raise Draining("the sidecar is draining; resume the stream shortly")
        self._gate.check_memory(0)
        reading = self._resuming.resume(self, stream_id, offset, labels)
        self._tell_busy()
        return reading

    def cancel_stream(self, stream_id: str) -> None:
        """Tell the engine of a stream to stop now, whoever reads. Of one that is over: nothing.

        Raises:
          InvalidRequest, StreamNotFound, CapacityExhausted, CorruptLog
        """
        if stream_id in self._kept:
            return
        self._resuming.cancel(stream_id)
        self._tell_busy()

    def polled(self, stream: LiveStream) -> None:
        """Take note of what a front end's poll has found out."""
        self._watch.polled(stream)

    def leave(self, reading: Reading) -> None:
        """See `Reading.leave`."""
        self._readers.leave(reading)
        self._tell_busy()

    def models(self) -> list[ModelInfo]:
        """Return the models that can be asked for now, sorted by name."""
        return self._engines.models()

    def drain(self) -> None:
        """Refuse new streams and new engines from now on; those that are there go on."""
        self._gate.draining = True
        self._tell_ready()

    def send_engines_on(self) -> None:
        """Let engines attach to whoever listens from now on; what they do for us goes on."""
        for engine in self._engines.all():
            engine.link.draining()

    @property
    def ready(self) -> bool:
        """Whether a new stream has somewhere to go."""
        return self._engines.serving and not self._gate.draining

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
        self._attachments.detach_dead()
        self._watch.turn()
        self._stalls.sweep(self._streams.values(), now_ns)
        self._readers.sweep(now_ns)
        self._finder.sweep(now_ns)
        self._kept.sweep(now_ns)
        self._leftovers.sweep(now_ns)
        self._orphans.turn(now_ns)
        if not self._engines.serving:  # no request asks for room, but the engine's table needs some
            self._gate.clear_space()
        return moved

    def seek(self) -> None:
        """Bring a reader nearer to its place; wanted soon while `seeking`."""
        self._readers.seek()

    @property
    def seeking(self) -> bool:
        """Whether a resumed reader is still on the way to its place."""
        return self._readers.seeking

    @property
    def busy(self) -> bool:
        """Whether sweeps are needed: streams live, or files should be gone already."""
        return bool(self._streams) or len(self._leftovers) > 0

    @property
    def rest_s(self) -> float:
        """How long nothing has to be swept while nothing is `busy`."""
        due_ns = self._orphans.due_ns
        if self._kept.due_ns is not None:
            due_ns = min(due_ns, self._kept.due_ns)
        return max(due_ns - self._clock.now_ns(), 0) / 1e9

    @property
    def unsettled(self) -> bool:
        """Whether an engine or a file is still to do what it was told.

        Streams that wait for their readers, and files that are kept for them, are for whoever
        comes after this process.
        """
        return len(self._streams) > self._readers.missing or len(self._leftovers) > 0

    @property
    def hurried(self) -> bool:
        """Whether the next sweep should come soon: somebody waits for what it will find."""
        return self._watch.hurried or len(self._queue) > 0 or self._leftovers.hurried

    # --- For the engines' service ---------------------------------------------------------

    def attach(
        self, hello: Hello, link: EngineLink, announced: Sequence[OpenStream] = ()
    ) -> Engine:
        """Take in an engine; streams may be submitted to `link` before this returns.

        announced: the streams that it has already, checked; they get their slots before any other.

        Raises:
          Draining, CapacityExhausted, InvalidRequest, AttachRefused
        """
        return self._attachments.attach(hello, link, announced)

    def announce(self, engine: Engine, announced: Sequence[OpenStream]) -> None:
        """Take in streams of earlier attachments that an attached engine announces later.

        Raises:
          InvalidRequest: one breaks a rule of engine.proto; none is taken in.
        """
        self._attachments.announce(engine, announced)

    def rejected(self, engine: Engine, stream_id: str, code: int, message: str) -> None:
        """End a stream that `engine` will not begin. Ids of streams it does not hold are ignored.

        Raises:
          StreamMisuse: its log was seen already, so it has begun.
        """
        stream = engine.stream(stream_id)
        if stream is None:
            return
        as_told = stream.state is State.STOPPING and code == Code.CANCELLED
        last = CANCELLED if as_told else EngineStatus(code, message)
        self._advance(stream, Step.REJECT, last)

    def detach(self, engine: Engine, why: str) -> None:
        """Let go of an engine whose Attach call ended. May be called again, without effect."""
        self._attachments.detach(engine, why)

    # --- Gauges: read by the metrics' thread ----------------------------------------------

    def active_streams(self) -> int:
        return self._steps.active

    def queue_length(self) -> int:
        return len(self._queue)

    def engines(self) -> int:
        return len(self._engines)

    def stalled_streams(self) -> int:
        return self._stalls.count

    def shm_used_bytes(self) -> int:
        return self._budget.taken_bytes

    def shm_budget_bytes(self) -> int:
        return self._budget.limit_bytes

    def shm_free_bytes(self) -> int:
        return self._directory.space().free_bytes

    # --- What the parts call --------------------------------------------------------------

    def _advance(
        self, stream: LiveStream, step: Step, last: RRPAError | Finished | None = None
    ) -> None:
        self._steps.advance(stream, step, last)

    def _show(self, stream: LiveStream) -> None:
        self._readers.show(stream)
        if self.seeking:
            self._tell_busy()

    def _poll_table(self, engine: Engine) -> list[Moves]:
        if engine.blind or not engine.attached:  # who was told of one stream may end another's
            return []
        try:
            return engine.table.poll()
        except CorruptLog as error:
            log.error("engine %s has a corrupt table: %s", engine.name, error)
            engine.blind = True
            self._attachments.quarantine(engine, error)
            return []

    def _quarantine(self, engine: Engine, error: CorruptLog) -> None:
        self._attachments.quarantine(engine, error)

    def _changed(self) -> None:
        self._tell_ready()
        self._tell_busy()

    def _tell_ready(self) -> None:
        if self.ready is not self._ready:
            self._ready = self.ready
            if self.on_ready_change is not None:
                self.on_ready_change(self._ready)

    def _tell_busy(self) -> None:
        if self.on_busy is not None:
            self.on_busy()
