"""One client's place in a stream, as its front end sees it: poll, be woken, leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from rrpa_sidecar.errors import OffsetOutOfRange, RRPAError
from rrpa_sidecar.stream.events import Data, Event, Failed, Finished
from rrpa_sidecar.stream.seek import Seeker
from rrpa_sidecar.stream.stream import FRAME_LIMIT_BYTES, OneEvent, Silence, StreamReader

if TYPE_CHECKING:
    from rrpa_sidecar.control.live import Labels, LiveStream, Timing
    from rrpa_sidecar.metrics import ModelMetrics

Source = StreamReader | Seeker | OneEvent | Silence


class Keeper(Protocol):
    """What a reading asks of its broker."""

    def polled(self, stream: LiveStream) -> None: ...

    def leave(self, reading: Reading) -> None: ...


class Reading:
    """Made by `Broker.open` and `Broker.resume`, used in the broker's thread.

    labels: of the call that reads; those of the call that asked are the stream's.
    timing: of this call. The moments of the engine's work are known to the call that asked alone.
    start_offset: bytes of the answer that its client had already.
    beyond: the answer was found to have fewer.
    waker: called in the loop thread when `poll()` may have something new. It may call `poll`
    and `leave`, and must not raise.
    """

    __slots__ = (
        "_counted_replaced",
        "_keeper",
        "_meter",
        "beyond",
        "labels",
        "left",
        "resumed",
        "source",
        "start_offset",
        "stream",
        "timing",
        "waker",
    )

    def __init__(
        self,
        keeper: Keeper,
        stream: LiveStream,
        labels: Labels,
        timing: Timing,
        meter: ModelMetrics,
        resumed_at: int | None = None,
    ) -> None:
        self._keeper = keeper
        self._meter = meter
        self._counted_replaced = 0
        self.stream = stream
        self.labels = labels
        self.timing = timing
        self.resumed = resumed_at is not None
        self.start_offset = resumed_at or 0
        self.beyond: OffsetOutOfRange | None = None
        self.waker: Callable[[], None] | None = None
        self.left = False
        self.source: Source = Silence(self.start_offset)

    @property
    def stream_id(self) -> str:
        return self.stream.stream_id

    @property
    def model(self) -> str:
        """The model that was asked for; "" while only the stream's file is known."""
        return self.stream.model

    @property
    def resumable(self) -> bool:
        """Whether the stream outlives its clients for a while."""
        return self.stream.resumable

    def poll(self, limit_bytes: int = FRAME_LIMIT_BYTES) -> Event | None:
        """Return the next event, or None while there is nothing new. Never waits.

        limit_bytes: most raw bytes of one event; see `StreamReader.poll`.
        """
        event = self.source.poll(limit_bytes)
        if type(event) is Data and event.offset == 0:
            self.stream.begun(self._meter)
        self._count_replaced()
        self._keeper.polled(self.stream)
        return event

    @property
    def caught_up(self) -> bool:
        """Whether `poll` would find nothing before the next wake: saves a read for each token."""
        return self.source.caught_up

    def follow(self, place: object, word: int = 0) -> StreamReader | None:
        """Have the front end's short way meet `place` when this stream moves, from now on.

        word: of its slot, as the front end met it last; 0: it was woken.

        Returns what `StreamReader.promised` is asked of, or None where the table cannot be
        trusted (yet) or the stream has several readers: then they are woken as before. May be
        called again.
        """
        source, stream = self.source, self.stream
        engine = stream.engine
        if type(source) is not StreamReader or engine is None or len(stream.readings) != 1:
            return None
        if not source.trust(word or stream.word) or not engine.put(stream, place):
            return None
        return source

    @property
    def offset(self) -> int:
        """Bytes of the answer that the client has, those before `start_offset` included."""
        return self.source.offset - self.source.unread_bytes

    def leave(self) -> None:
        """Say that the client is gone or has everything. May be called again, without effect.

        What becomes of the stream, when nobody else reads it, is for the broker to say.
        """
        self._count_replaced()
        self._keeper.leave(self)

    def show(self, source: Source) -> None:
        """Let the client, if it is still there, read from `source` from now on."""
        if not self.left:
            self.source = source
            self.wake()

    def end(self, event: Finished | Failed) -> None:
        """Let the client see `event` and nothing else."""
        self.show(OneEvent(event))

    def fail(self, error: RRPAError) -> None:
        """Let the client see `error` and nothing else."""
        self.end(Failed(self.offset, error))

    def refuse(self, error: OffsetOutOfRange) -> None:
        """Let the client see that the answer has fewer bytes than it says it has."""
        self.beyond = error
        self.fail(error)

    def wake(self) -> None:
        if self.waker is not None:
            self.waker()

    def let_go(self) -> None:
        """Let go of the log, which may be closed from now on."""
        source = self.source
        if type(source) is StreamReader:
            source.distrust()
        self.left = True
        self.waker = None
        self.source = Silence(self.offset)

    def _count_replaced(self) -> None:
        replaced = self.source.replaced
        if replaced > self._counted_replaced:  # less: there is another source since
            self._meter.replaced(replaced - self._counted_replaced)
            self._counted_replaced = replaced
