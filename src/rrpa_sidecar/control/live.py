"""One stream as its engine's side sees it: who writes it, how far it is, who reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rrpa_sidecar.control.lifecycle import State, Step
from rrpa_sidecar.errors import RRPAError
from rrpa_sidecar.stream.events import Finished
from rrpa_sidecar.stream.seek import beyond

if TYPE_CHECKING:
    from rrpa_sidecar.clock import Clock
    from rrpa_sidecar.control.admission import Ticket
    from rrpa_sidecar.control.engines import Engine
    from rrpa_sidecar.control.kept import Kept
    from rrpa_sidecar.control.reading import Reading
    from rrpa_sidecar.metrics import ModelMetrics
    from rrpa_sidecar.shm.reader import LogReader
    from rrpa_sidecar.stream.progress import Progress


@dataclass(slots=True)
class Labels:
    """What the client calls its request. Handed on, never used as a name of anything."""

    request_id: str
    stream_id: str
    priority: int = 0
    traceparent: str = ""
    resumable: bool = False
    """Whether the stream is to outlive its client for a while."""


@dataclass(slots=True)
class Timing:
    """Moments of CLOCK_MONOTONIC, for server-timing; None: has not happened."""

    accepted_ns: int
    submitted_ns: int | None = None
    first_commit_ns: int | None = None
    first_frame_ns: int | None = None
    """Set by the front end."""


class LiveStream:
    """A stream between its engine and its readers. The broker's, in its thread.

    timing: of the call that asked for it.
    readings: those who read it now, in the order in which they came.
    turn: of the slot before this stream had it; None: not known, or it has no slot.
    word: of the slot, as the last scan that woke this stream saw it.
    log: open until the stream is GONE.
    last: all that readers get of a stream that has no log.
    settled: the step that a final or corrupt log asks for was taken.
    stop_wanted: somebody has asked to stop it; an engine that takes it over must be told.
    adopted: an engine has announced it; the log may have another size than ours.
    unclaimed: nobody has read it since; its client may have been cut off, and come back.
    charged_bytes: of the budget.
    kept: what was remembered of it while it was over and had no reader.
    """

    __slots__ = (
        "__weakref__",
        "_clock",
        "adopted",
        "charged_bytes",
        "corrupt",
        "engine",
        "kept",
        "labels",
        "last",
        "log",
        "model",
        "progress",
        "readings",
        "request",
        "resumable",
        "settled",
        "slot",
        "state",
        "stop_wanted",
        "stream_id",
        "ticket",
        "timing",
        "turn",
        "unclaimed",
        "word",
    )

    def __init__(
        self,
        clock: Clock,
        stream_id: str,
        model: str,
        labels: Labels,
        *,
        request: bytes = b"",
        state: State = State.QUEUED,
    ) -> None:
        self._clock = clock
        self.stream_id = stream_id
        self.model = model
        self.labels = labels
        self.resumable = labels.resumable
        self.timing = Timing(clock.now_ns())
        self.request = request
        self.state = state
        self.readings: list[Reading] = []
        self.ticket: Ticket | None = None
        self.engine: Engine | None = None
        self.slot = -1
        self.turn: int | None = None
        self.word = 0
        self.log: LogReader | None = None
        self.progress: Progress | None = None
        self.last: RRPAError | Finished | None = None
        self.corrupt = False
        self.settled = False
        self.stop_wanted = False
        self.adopted = False
        self.unclaimed = False
        self.charged_bytes = 0
        self.kept: Kept | None = None

    @property
    def caught_up(self) -> bool:
        """Whether none of its readers has anything to read."""
        return all(reading.caught_up for reading in self.readings)

    def wake(self) -> None:
        for reading in tuple(self.readings):
            reading.wake()

    def end(self, last: RRPAError | Finished) -> None:
        """Let readers see `last` and nothing else, now and later."""
        self.last = last
        for reading in tuple(self.readings):
            self.tell_last(reading)

    def tell_last(self, reading: Reading) -> None:
        """Let one reader see what `end` was told."""
        assert self.last is not None
        if not isinstance(self.last, Finished):
            reading.fail(self.last)
        elif reading.start_offset > self.last.offset:
            reading.refuse(beyond(reading.start_offset, self.last.offset))
        else:
            reading.end(self.last)

    def begun(self, meter: ModelMetrics) -> None:
        """Measure how long the engine took to the first byte, when a reader gets it, once."""
        timing = self.timing
        stamp = self.log.first_commit_ns() if self.log else None
        if stamp is None or timing.submitted_ns is None or timing.first_commit_ns is not None:
            return
        # The stamp comes from another process, perhaps of another time namespace; a wrong one
        # must not become a negative time, nor one that spoils the sum of all.
        timing.first_commit_ns = min(max(stamp, timing.submitted_ns), self._clock.now_ns())
        meter.engine_first_token((timing.first_commit_ns - timing.submitted_ns) / 1e9)


class Advance(Protocol):
    """How a part of the broker takes a step of a stream's life."""

    def __call__(
        self, stream: LiveStream, step: Step, last: RRPAError | Finished | None = None
    ) -> None:
        """last: all that readers will get of the stream, where there is no log to read."""
        ...
