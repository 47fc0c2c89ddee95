"""One stream as its front end sees it: poll, be woken, leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rrpa_sidecar.control.lifecycle import State
from rrpa_sidecar.errors import RRPAError
from rrpa_sidecar.stream.events import Data, Event, Failed
from rrpa_sidecar.stream.stream import FRAME_LIMIT_BYTES, OneFailure, Silence, StreamReader

if TYPE_CHECKING:
    from rrpa_sidecar.control.admission import Ticket
    from rrpa_sidecar.control.engines import Engine
    from rrpa_sidecar.metrics import ModelMetrics
    from rrpa_sidecar.shm.reader import LogReader

SILENCE = Silence()


@dataclass(slots=True)
class Labels:
    """What the client calls its request. Handed on, never used as a name of anything."""

    request_id: str
    stream_id: str
    priority: int = 0
    traceparent: str = ""


@dataclass(slots=True)
class Timing:
    """Moments of CLOCK_MONOTONIC, for server-timing; None: has not happened."""

    accepted_ns: int
    submitted_ns: int | None = None
    first_commit_ns: int | None = None
    first_frame_ns: int | None = None
    """Set by the front end."""


class Keeper(Protocol):
    """What a stream asks of its broker."""

    def now_ns(self) -> int: ...

    def polled(self, stream: LiveStream) -> None: ...

    def leave(self, stream: LiveStream) -> None: ...


class LiveStream:
    """A stream between its client and its engine. Made by `Broker.open`, used in its thread.

    waker: called in the loop thread when `poll()` may have something new. It may call `poll`
    and `leave`, and must not raise.
    """

    __slots__ = (
        "__weakref__",
        "_counted_replaced",
        "_keeper",
        "_meter",
        "corrupt",
        "engine",
        "labels",
        "left",
        "log",
        "model",
        "reader",
        "request",
        "settled",
        "slot",
        "source",
        "state",
        "stream_id",
        "ticket",
        "timing",
        "waker",
        "word",
    )

    def __init__(
        self,
        keeper: Keeper,
        stream_id: str,
        model: str,
        labels: Labels,
        request: bytes,
        timing: Timing,
        meter: ModelMetrics,
    ) -> None:
        self._keeper = keeper
        self._meter = meter
        self._counted_replaced = 0
        self.stream_id = stream_id
        self.model = model
        self.labels = labels
        self.timing = timing
        self.waker: Callable[[], None] | None = None
        # From here on: the broker's.
        self.request = request
        self.state = State.QUEUED
        self.ticket: Ticket | None = None
        self.engine: Engine | None = None
        self.slot = -1
        self.word = 0
        """Of the slot, as the last scan that woke this stream saw it."""
        self.log: LogReader | None = None
        self.reader: StreamReader | None = None
        self.source: StreamReader | OneFailure | Silence = SILENCE
        self.left = False
        self.corrupt = False
        self.settled = False
        """The step that a final or corrupt log asks for was taken."""

    def poll(self, limit_bytes: int = FRAME_LIMIT_BYTES) -> Event | None:
        """Return the next event, or None while there is nothing new. Never waits.

        limit_bytes: most raw bytes of one event; see `StreamReader.poll`.
        """
        source = self.source
        event = source.poll(limit_bytes)
        if type(event) is Data and event.offset == 0:
            self._count_first_token()
        self._count_replaced()
        self._keeper.polled(self)
        return event

    @property
    def caught_up(self) -> bool:
        """Whether `poll` would find nothing before the next wake: saves a read for each token."""
        return self.source.caught_up

    def follow(self, place: object, word: int = 0) -> StreamReader | None:
        """Have the front end's short way meet `place` when this stream moves, from now on.

        word: of its slot, as the front end met it last; 0: it was woken.

        Returns what `StreamReader.promised` is asked of, or None where the table cannot be
        trusted (yet): then the stream is woken as before. May be called again.
        """
        reader, engine = self.reader, self.engine
        if self.left or reader is None or engine is None:
            return None
        if not reader.trust(word or self.word) or not engine.put(self, place):
            return None
        return reader

    @property
    def offset(self) -> int:
        """Bytes of the answer taken so far."""
        return self.source.offset

    def leave(self) -> None:
        """Say that the client is gone or has everything. May be called again, without effect.

        The engine's work is cancelled if it still runs; file, slot and budget follow.
        """
        self._count_replaced()
        self._keeper.leave(self)

    def show(self, source: StreamReader | OneFailure) -> None:
        """Let the client, if it is still there, read from `source` from now on."""
        if not self.left:
            self.source = source
            self.wake()

    def fail(self, error: RRPAError) -> None:
        """Let the client see `error` and nothing else."""
        self.show(OneFailure(Failed(0, error)))

    def wake(self) -> None:
        if self.waker is not None:
            self.waker()

    def _count_replaced(self) -> None:
        replaced = self.source.replaced
        if replaced > self._counted_replaced:  # less: there is another source since `leave`
            self._meter.replaced(replaced - self._counted_replaced)
            self._counted_replaced = replaced

    def _count_first_token(self) -> None:
        stamp = self.log.first_commit_ns() if self.log else None
        submitted_ns = self.timing.submitted_ns
        if stamp is None or submitted_ns is None:
            return
        # The stamp comes from another process, perhaps of another time namespace; a wrong one
        # must not become a negative time, nor one that spoils the sum of all.
        now_ns = self._keeper.now_ns()
        self.timing.first_commit_ns = min(max(stamp, submitted_ns), now_ns)
        self._meter.engine_first_token((self.timing.first_commit_ns - submitted_ns) / 1e9)
