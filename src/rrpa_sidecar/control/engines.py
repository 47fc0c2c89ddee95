"""The attached engines: their slots, their models, and which of them gets the next stream."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rrpa_sidecar.control.hello import Offer
from rrpa_sidecar.errors import CorruptLog, StreamMisuse

if TYPE_CHECKING:
    from rrpa_sidecar.control.live import LiveStream


STREAMS_PER_SLOT = 4
"""Most streams that an engine may have for each slot, adopted ones without a slot included. They
pile up when sidecars are replaced faster than streams end: each new one finds the slots free."""


NO_SLOT = -1
"""Slot of a stream that no table speaks of."""


class EngineLink(Protocol):
    """The way to one engine. No method waits, raises, or calls back before it returns."""

    def submit(self, stream: LiveStream, timeout_ms: int | None) -> None: ...

    def adopt(self, stream_id: str, slot: int | None) -> None: ...

    def draining(self) -> None: ...

    def cancel(self, stream_id: str) -> None: ...

    def release(self, stream_id: str) -> None: ...

    def close(self, why: Exception) -> None:
        """End the Attach call with `why` as its status."""
        ...


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One row of ListModels."""

    name: str
    engines: int
    capacity: int
    active: int


class Engine:
    """One attached engine.

    streams: slot → the stream in it. With those that were adopted when all slots were taken,
      which have `NO_SLOT`, exactly the streams in `lifecycle.HOLDS_SLOT`.
    """

    def __init__(self, offer: Offer, link: EngineLink) -> None:
        self.offer = offer
        self.link = link
        self.name = offer.name
        self.table = offer.table
        self.streams: dict[int, LiveStream] = {}
        self.attached = True
        self.lost_ns = 0
        """When it was detached; means nothing while it is attached."""
        self.lost_why = ""
        self.dead = False
        """Nobody holds its table any more; seen only after it was detached."""
        self.quarantined: CorruptLog | None = None
        """Why it gets nothing new: a file of its breaks a rule. Its Attach call ends with this once
        the streams that it has are over, and it may attach again then, with a new table."""
        self.blind = False
        """Its table cannot be read any more; sweeps find what its logs hold."""
        self.places: list[object] = [None] * offer.capacity
        """slot → what the front end's short way knows its stream by; None: it is woken."""
        self._by_id: dict[str, LiveStream] = {}
        # First in, first out: a word of the table that still changes for an old stream is as
        # old as can be before its slot is used again.
        self._free = deque(range(offer.capacity))

    @property
    def has_room(self) -> bool:
        return bool(self._free) and self.quarantined is None

    @property
    def load(self) -> float:
        """Share of the slots that are taken."""
        return len(self.streams) / self.offer.capacity

    @property
    def takes_more(self) -> bool:
        """Whether it may announce one more stream."""
        return len(self._by_id) < STREAMS_PER_SLOT * self.offer.capacity

    def held(self) -> list[LiveStream]:
        """Return all its streams, those without a slot included."""
        return list(self._by_id.values())

    def take_slot(self, stream: LiveStream) -> int:
        slot = self._free.popleft()
        stream.turn = self._turn(slot)
        self.streams[slot] = stream
        self._by_id[stream.stream_id] = stream
        return slot

    def adopt(self, stream: LiveStream) -> int:
        """Take in a stream that the engine has already; return its slot, or NO_SLOT."""
        if self._free:
            return self.take_slot(stream)
        stream.turn = None
        self._by_id[stream.stream_id] = stream
        return NO_SLOT

    def _turn(self, slot: int) -> int | None:
        # Read now: the log before it was born, whether or not a scan has seen its last words.
        try:
            return self.table.turn(slot)
        except CorruptLog:  # the next scan will say so
            return None

    def free_slot(self, slot: int, stream: LiveStream) -> None:
        held = self._by_id.get(stream.stream_id)
        if held is not stream or self.streams.get(slot, stream) is not stream:
            raise StreamMisuse(f"slot {slot} of engine {self.name} is not this stream's")
        del self._by_id[stream.stream_id]
        if slot == NO_SLOT:
            return
        del self.streams[slot]
        self.places[slot] = None
        self._free.append(slot)

    def put(self, stream: LiveStream, place: object) -> bool:
        """Let the short way know `stream` by `place`; False: its slot is not its own any more."""
        if self.streams.get(stream.slot) is not stream:
            return False
        self.places[stream.slot] = place
        return True

    def stream(self, stream_id: str) -> LiveStream | None:
        """Return the stream with this id if this engine holds it: engines name only their own."""
        return self._by_id.get(stream_id)


class Engines:
    """All attached engines, by model."""

    def __init__(self) -> None:
        self._engines: dict[Engine, None] = {}  # in the order they attached
        self._by_model: dict[str, list[Engine]] = {}

    def __len__(self) -> int:
        return len(self._engines)

    def all(self) -> tuple[Engine, ...]:
        """Return the engines as they are now; safe to walk while they come and go."""
        return tuple(self._engines)

    def add(self, engine: Engine) -> None:
        self._engines[engine] = None
        for model in engine.offer.models:
            self._by_model.setdefault(model, []).append(engine)

    def remove(self, engine: Engine) -> None:
        del self._engines[engine]
        if engine.quarantined is None:
            self._serve_no_more(engine)

    def quarantine(self, engine: Engine, why: CorruptLog) -> None:
        """Let `engine` serve its models no more; what it has goes on. Once."""
        engine.quarantined = why
        self._serve_no_more(engine)

    def _serve_no_more(self, engine: Engine) -> None:
        for model in engine.offer.models:
            serving = self._by_model[model]
            serving.remove(engine)
            if not serving:
                del self._by_model[model]

    @property
    def serving(self) -> bool:
        """Whether one of them would take a stream."""
        return bool(self._by_model)

    def serves(self, model: str) -> bool:
        return model in self._by_model

    def has_room(self, model: str) -> bool:
        return any(engine.has_room for engine in self._by_model.get(model, ()))

    def capacity(self, model: str) -> int:
        return sum(engine.offer.capacity for engine in self._by_model.get(model, ()))

    def least_loaded(self, model: str) -> Engine | None:
        """Return the engine of `model` with the smallest share taken, or None if all are full."""
        ready = (engine for engine in self._by_model.get(model, ()) if engine.has_room)
        return min(ready, key=lambda engine: engine.load, default=None)

    def models(self) -> list[ModelInfo]:
        return [self._info(model) for model in sorted(self._by_model)]

    def _info(self, model: str) -> ModelInfo:
        serving = self._by_model[model]
        streams = (stream for engine in serving for stream in engine.held())
        active = sum(stream.model == model for stream in streams)
        return ModelInfo(model, len(serving), self.capacity(model), active)
