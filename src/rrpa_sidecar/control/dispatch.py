"""Who runs and who waits: streams leave the queue for an engine as slots and budget allow."""

from __future__ import annotations

from collections.abc import Iterator

from rrpa_sidecar.clock import Clock
from rrpa_sidecar.control.admission import Queue, Ticket
from rrpa_sidecar.control.engines import Engines
from rrpa_sidecar.control.gate import Gate
from rrpa_sidecar.control.lifecycle import Step
from rrpa_sidecar.control.live import Advance, LiveStream
from rrpa_sidecar.control.requests import shortened
from rrpa_sidecar.errors import CapacityExhausted, DeadlinePassed, NoEngine, RRPAError
from rrpa_sidecar.metrics import Metrics


class Dispatch:
    """Takes the steps that lead out of QUEUED, but for LEAVE.

    Whatever step is taken, `advance` calls `remove` for a stream that is QUEUED no more. Front
    ends that are told of a refusal may leave at once, and so change the queue under our hands.
    """

    def __init__(
        self,
        queue: Queue,
        gate: Gate,
        engines: Engines,
        metrics: Metrics,
        clock: Clock,
        advance: Advance,
    ) -> None:
        self._queue = queue
        self._gate = gate
        self._engines = engines
        self._metrics = metrics
        self._clock = clock
        self._advance = advance
        self._waiting: dict[str, LiveStream] = {}
        self._running = False

    def wait(self, stream: LiveStream, deadline_ns: int | None) -> None:
        """Put a new stream into the queue; `run` follows."""
        stream.ticket = self._queue.add(
            stream.stream_id,
            stream.model,
            stream.labels.priority,
            deadline_ns,
            len(stream.request),
        )
        self._waiting[stream.stream_id] = stream

    def remove(self, stream: LiveStream) -> None:
        """Take a stream out of the queue."""
        assert stream.ticket is not None  # `wait` gave it one
        self._queue.remove(stream.ticket)
        del self._waiting[stream.stream_id]

    def run(self) -> None:
        """Submit what waits, as long as there are slots and budget.

        What frees some on the way calls this again: the loop that runs already will see it.
        """
        if self._running:
            return
        self._running = True
        try:
            self._run()
        finally:
            self._running = False

    def _run(self) -> None:
        while True:
            ticket = self._queue.first(self._engines.has_room)
            if ticket is None or not self._gate.make_room():
                return
            stream = self._waiting[ticket.stream_id]
            if ticket.deadline_ns is not None and ticket.deadline_ns <= self._clock.now_ns():
                self._refuse_late(stream)
                continue
            try:
                self._gate.check_space()
            except CapacityExhausted as error:
                self._refuse(stream, error)
                continue
            self._submit(stream, ticket.deadline_ns)

    def refuse_late(self, now_ns: int) -> None:
        """Refuse all whose deadline has come."""
        for stream in self._still_waiting(self._queue.late(now_ns)):
            self._refuse_late(stream)

    def refuse_unserved(self) -> None:
        """Refuse all whose model no engine serves any more."""
        for stream in self._still_waiting(self._queue.unserved(self._engines.serves)):
            sentence = (
                f"the last engine of model {shortened(stream.model)} left while the request"
                " waited; try again later"
            )
            self._refuse(stream, NoEngine(sentence))

    def _submit(self, stream: LiveStream, deadline_ns: int | None) -> None:
        engine = self._engines.least_loaded(stream.model)
        assert engine is not None  # `run` asked
        now_ns = self._clock.now_ns()
        stream.charged_bytes = self._gate.budget.take()
        stream.engine = engine
        stream.slot = engine.take_slot(stream)
        stream.timing.submitted_ns = now_ns
        self._advance(stream, Step.SUBMIT)
        waited_s = (now_ns - stream.timing.accepted_ns) / 1e9
        self._metrics.model(stream.model).queue_wait(waited_s)
        timeout_ms = None if deadline_ns is None else (deadline_ns - now_ns) // 1_000_000
        engine.link.submit(stream, timeout_ms)
        stream.request = b""  # up to 8 MiB, and never needed again

    def _refuse_late(self, stream: LiveStream) -> None:
        waited_s = (self._clock.now_ns() - stream.timing.accepted_ns) / 1e9
        sentence = f"the deadline passed while the request waited {waited_s:.3f} s for an engine"
        self._refuse(stream, DeadlinePassed(sentence))

    def _refuse(self, stream: LiveStream, error: RRPAError) -> None:
        self._advance(stream, Step.REFUSE, error)

    def _still_waiting(self, tickets: list[Ticket]) -> Iterator[LiveStream]:
        """Yield the streams of `tickets`, but for those that a refused one's front end took out."""
        for ticket in tickets:
            stream = self._waiting.get(ticket.stream_id)
            if stream is not None:
                yield stream
