"""Engines come, bring along what they have, get nothing more once they break a rule, and go."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from rrpa_sidecar.clock import Clock
from rrpa_sidecar.control.adoption import Adoption
from rrpa_sidecar.control.announced import check
from rrpa_sidecar.control.dispatch import Dispatch
from rrpa_sidecar.control.engines import Engine, EngineLink, Engines
from rrpa_sidecar.control.gate import Gate
from rrpa_sidecar.control.hello import check_hello
from rrpa_sidecar.control.leftovers import Leftovers
from rrpa_sidecar.control.lifecycle import HOLDS_SLOT, State, Step
from rrpa_sidecar.control.live import Advance
from rrpa_sidecar.control.watch import Watch
from rrpa_sidecar.errors import CorruptLog, EngineLost
from rrpa_sidecar.metrics import Metrics
from rrpa_sidecar.pb.engine_pb2 import Hello, OpenStream
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import SegmentDirectory
from rrpa_sidecar.shm.reclaim import Reclaim

log = logging.getLogger(__name__)


class Attachments:
    """Takes the steps of a stream's life that the coming and going of engines cause.

    on_change: called when it may have changed what is served and what has to be swept.
    """

    def __init__(
        self,
        directory: SegmentDirectory,
        engines: Engines,
        gate: Gate,
        dispatch: Dispatch,
        adoption: Adoption,
        watch: Watch,
        leftovers: Leftovers,
        metrics: Metrics,
        clock: Clock,
        advance: Advance,
        on_change: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._engines = engines
        self._gate = gate
        self._dispatch = dispatch
        self._adoption = adoption
        self._watch = watch
        self._leftovers = leftovers
        self._metrics = metrics
        self._clock = clock
        self._advance = advance
        self._on_change = on_change

    def attach(self, hello: Hello, link: EngineLink, announced: Sequence[OpenStream]) -> Engine:
        """See `Broker.attach`."""
        self._gate.check_engine()
        offer = check_hello(hello, self._directory)
        engine = Engine(offer, link)
        self._engines.add(engine)
        for model in offer.models:
            self._metrics.add_model(model)
        models = ",".join(offer.models)
        log.info(
            "engine %s attached: models %s, capacity %d, build %a, %d streams of before",
            *(offer.name, models, offer.capacity, offer.build, len(announced)),
        )
        self._take_in(engine, announced)
        return engine

    def announce(self, engine: Engine, announced: Sequence[OpenStream]) -> None:
        """See `Broker.announce`."""
        check(announced, lambda stream_id: engine.stream(stream_id) is not None)
        self._take_in(engine, announced)

    def detach(self, engine: Engine, why: str) -> None:
        """See `Broker.detach`."""
        if not engine.attached:
            return
        engine.attached = False
        engine.lost_ns = self._clock.now_ns()
        engine.lost_why = f"engine {engine.name} was lost ({why})"
        self._engines.remove(engine)
        for model in engine.offer.models:
            self._metrics.remove_model(model)
        streams = engine.held()
        log.info("engine %s detached: %s; it had %d streams", engine.name, why, len(streams))
        for stream in streams:
            if stream.state in HOLDS_SLOT:  # who was told of another's end may have left this one
                self._advance(stream, Step.ENGINE_GONE)
        engine.table.close()
        self._leftovers.add(layout.table_name(engine.offer.table_id), partial(_died, engine))
        self._leftovers.add_unborn()
        for stream in streams:
            if stream.state is State.LOSING and stream.engine is engine:
                self._watch.look(stream)
        self._dispatch.refuse_unserved()
        self._on_change()
        self._dispatch.run()

    def detach_dead(self) -> None:
        """Let go of engines whose process is gone though a child of theirs keeps the call open."""
        for engine in self._engines.all():
            if engine.attached and engine.table.writer_gone():
                self.detach(engine, "its process is gone")

    def quarantine(self, engine: Engine, error: CorruptLog) -> None:
        """Give an engine that has broken a rule nothing more; what it has may end."""
        if engine.quarantined is not None or not engine.attached:
            return
        log.error("engine %s gets no new streams, it has %d", engine.name, len(engine.held()))
        self._metrics.totals.engines_quarantined += 1
        self._engines.quarantine(engine, error)
        self._dispatch.refuse_unserved()
        self._on_change()
        self.let_go(engine)

    def let_go(self, engine: Engine) -> None:
        """End the attachment of a quarantined engine if it has no stream left."""
        if engine.quarantined is not None and engine.attached and not engine.held():
            engine.link.close(engine.quarantined)
            self.detach(engine, "a file of its broke a rule")

    def _take_in(self, engine: Engine, announced: Sequence[OpenStream]) -> None:
        for old in self._adoption.stale(engine, announced):
            old.link.close(EngineLost("the engine has attached again"))
            self.detach(old, "it attached again")
        self._adoption.answer(engine, announced)
        self._on_change()
        self._dispatch.run()


def _died(engine: Engine, outcome: Reclaim) -> None:
    """Take note that nobody held a detached engine's table any more."""
    engine.dead = True
