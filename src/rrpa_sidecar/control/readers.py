"""Who reads which stream: they come, find their place, leave, and are waited for."""

from __future__ import annotations

import logging

from rrpa_sidecar.clock import Clock
from rrpa_sidecar.control.lifecycle import GENERATES, MAY_GO_ON, State, Step
from rrpa_sidecar.control.live import Advance, LiveStream
from rrpa_sidecar.control.reading import Reading
from rrpa_sidecar.control.watch import Watch
from rrpa_sidecar.errors import CapacityExhausted, OffsetOutOfRange
from rrpa_sidecar.stream.seek import Seeker

log = logging.getLogger(__name__)

SEEK_BYTES = 256 * 1024
"""Of a log that are read in one turn of the loop to find a place: CPU time 0.05 ms of ASCII, 1.1 of
characters of random lengths, 4.3 of random bytes (CPython 3.11, 2-core x86-64, two runs agreed
within 20 %). Others want their tokens meanwhile."""

READERS_PER_STREAM = 64
"""Each move of a stream with several readers wakes all of them, at 10 to 50 µs each, in the loop
that carries everybody's tokens. A client whose lost calls are not noticed yet needs a few."""

ENDS_BY_ITSELF = frozenset({State.STOPPING, State.LOSING, State.LEAVING, State.GONE})
"""States of which a missing reader is no reason to leave."""


class Readers:
    """Takes the steps of a stream's life that its readers cause.

    window_s: how long a stream that may go on does so without a reader.
    resumed_limit: most readings at once that were resumed. The others are limited by the queue
      and the engines' slots; nothing else limits these.
    """

    def __init__(
        self, watch: Watch, clock: Clock, window_s: float, resumed_limit: int, advance: Advance
    ) -> None:
        self._watch = watch
        self._clock = clock
        self._window_ns = round(window_s * 1e9)
        self._resumed_limit = resumed_limit
        self._advance = advance
        self._resumed = 0
        self._seekers: dict[Reading, Seeker] = {}
        self._missed: dict[LiveStream, int] = {}  # → when it is given up; soonest first

    def check_room(self) -> None:
        """Raise CapacityExhausted unless one more call may resume a stream."""
        if self._resumed >= self._resumed_limit:
            raise CapacityExhausted(
                f"{self._resumed} calls read resumed streams, which is the limit (--shm-bytes /"
                " --stream-bytes + --queue-limit); try again shortly"
            )

    def check_stream(self, stream: LiveStream) -> None:
        """Raise CapacityExhausted unless one more call may read this stream."""
        if len(stream.readings) >= READERS_PER_STREAM:
            raise CapacityExhausted(
                f"{len(stream.readings)} calls read this stream, which is the limit; end some of"
                " them, then resume"
            )

    def join(self, reading: Reading) -> None:
        """Add a reader to its stream."""
        stream = reading.stream
        self._resumed += reading.resumed
        self._missed.pop(stream, None)
        stream.unclaimed = False
        stream.readings.append(reading)
        if len(stream.readings) > 1:  # they all are woken from now on
            self._end_short_way(stream)

    def place(self, reading: Reading) -> None:
        """Let a reader read, now or once its place is found. The stream's log was seen."""
        progress = reading.stream.progress
        assert progress is not None
        seeker = Seeker(progress, reading.start_offset)
        if self._seekers and reading.start_offset:  # many that come at once have one turn together
            reading.source = self._seekers[reading] = seeker
        else:
            self._seek(reading, seeker)

    def show(self, stream: LiveStream) -> None:
        """Let those read who have waited for the log."""
        for reading in tuple(stream.readings):
            self.place(reading)

    def leave(self, reading: Reading) -> None:
        """See `Reading.leave`."""
        if reading.left:
            return
        reading.let_go()
        self._resumed -= reading.resumed
        self._seekers.pop(reading, None)
        stream = reading.stream
        stream.readings.remove(reading)
        if stream.readings:
            return
        self._end_short_way(stream)
        # An end that nobody has read yet needs no Cancel, and must not get one.
        self._watch.look_for_end(stream)
        if stream.state in (State.LEAVING, State.GONE):
            return
        if stream.resumable and stream.state in MAY_GO_ON:
            self.miss(stream)
        else:
            self._advance(stream, Step.LEAVE)

    def miss(self, stream: LiveStream) -> None:
        """Wait for a reader, as long as the window is; one that is waited for has its time."""
        if self._window_ns:
            self._missed.setdefault(stream, self._clock.now_ns() + self._window_ns)
        else:
            self._give_up(stream)

    def forget(self, stream: LiveStream) -> None:
        """Take note that a stream is gone."""
        self._missed.pop(stream, None)

    def sweep(self, now_ns: int) -> None:
        """Give up what was waited for long enough."""
        while self._missed:
            stream, due_ns = next(iter(self._missed.items()))
            if due_ns > now_ns:
                return
            del self._missed[stream]
            self._give_up(stream)

    @property
    def missing(self) -> int:
        """Streams that wait for a reader."""
        return len(self._missed)

    @property
    def seeking(self) -> bool:
        """Whether a reader is on its way to its place: `seek` soon, and again."""
        return bool(self._seekers)

    def seek(self) -> None:
        """Bring one reader, each in turn, nearer to its place."""
        for reading, seeker in self._seekers.items():
            del self._seekers[reading]
            self._seek(reading, seeker)
            return

    def _seek(self, reading: Reading, seeker: Seeker) -> None:
        if reading.left:  # by who was told of another one
            return
        try:
            reader = seeker.advance(SEEK_BYTES)
        except OffsetOutOfRange as error:
            reading.refuse(error)
            return
        if reader is None:
            reading.source = self._seekers[reading] = seeker
        else:
            reading.show(reader)

    def _give_up(self, stream: LiveStream) -> None:
        self._watch.look_for_end(stream)
        if stream.state in GENERATES or stream.state is State.QUEUED:
            log.info(
                "stream %s is stopped: nobody has read it for --resume-window %g s",
                *(stream.stream_id, self._window_ns / 1e9),
            )
        if stream.state in GENERATES:  # what it has until then stays for the shm timeout
            self._advance(stream, Step.STOP)
        elif stream.state not in ENDS_BY_ITSELF:
            self._advance(stream, Step.LEAVE)

    def _end_short_way(self, stream: LiveStream) -> None:
        if stream.engine is not None:
            stream.engine.put(stream, None)
        if stream.progress is not None:
            stream.progress.trust_nobody()
