"""What clients ask of streams that there are already: to read on, and to stop."""

from __future__ import annotations

from rrpa_sidecar.clock import Clock
from rrpa_sidecar.control.finding import Finder
from rrpa_sidecar.control.lifecycle import GENERATES, State, Step
from rrpa_sidecar.control.live import Advance, Labels, LiveStream, Timing
from rrpa_sidecar.control.readers import Readers
from rrpa_sidecar.control.reading import Keeper, Reading
from rrpa_sidecar.control.watch import Watch
from rrpa_sidecar.metrics import Metrics
from rrpa_sidecar.stream.events import Finished
from rrpa_sidecar.stream.seek import beyond
from rrpa_sidecar.stream.stream import REASON_CANCELLED

BEFORE_ITS_LOG = frozenset({State.QUEUED, State.SUBMITTED, State.STOPPING})
"""States in which a stream without a log has no byte, for certain."""
CANCELLED = Finished(0, REASON_CANCELLED, None, 0, 0, 0)
"""The end of a stream that was stopped before it had a log."""


class Resuming:
    """Brings another reader, or a wish to stop, to a stream."""

    def __init__(
        self,
        finder: Finder,
        readers: Readers,
        watch: Watch,
        metrics: Metrics,
        clock: Clock,
        advance: Advance,
    ) -> None:
        self._finder = finder
        self._readers = readers
        self._watch = watch
        self._metrics = metrics
        self._clock = clock
        self._advance = advance

    def resume(self, keeper: Keeper, stream_id: str, offset: int, labels: Labels) -> Reading:
        """See `Broker.resume`."""
        self._readers.check_room()
        stream = self._finder.find(stream_id, wait=True)
        self._readers.check_stream(stream)  # one that was made just now has no reader
        timing, meter = Timing(self._clock.now_ns()), self._metrics.model(stream.model)
        reading = Reading(keeper, stream, labels, timing, meter, offset)
        self._readers.join(reading)
        self._see(stream)
        if stream.last is not None:
            stream.tell_last(reading)
        elif stream.progress is not None:
            self._readers.place(reading)
        elif offset and not self._watch.starving and stream.state in BEFORE_ITS_LOG:
            reading.refuse(beyond(offset, 0))
        if reading.beyond is not None:
            reading.leave()
            raise reading.beyond
        self._metrics.totals.streams_resumed += 1
        return reading

    def cancel(self, stream_id: str) -> None:
        """See `Broker.cancel_stream`."""
        stream = self._finder.find(stream_id, wait=False)
        self._see(stream)
        if stream.state in GENERATES:
            self._advance(stream, Step.STOP)
        elif stream.state is State.QUEUED:
            self._advance(stream, Step.REFUSE, CANCELLED)
        elif stream.state in (State.LOSING, State.FOUND, State.AWAITED):
            stream.stop_wanted = True
            if not stream.readings:
                self._readers.miss(stream)

    def _see(self, stream: LiveStream) -> None:
        """See how far the stream is; it may be over since."""
        self._finder.look_at_found(stream)
        self._watch.look_for_end(stream)
