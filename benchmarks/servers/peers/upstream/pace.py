"""One timer for all streams: a step gives each its next token. No I/O of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Protocol

LATEST_S = 1.0
"""How far the steps may be behind and still be made up for; after more they go on from now,
as the replay engine's do."""


class Stream(Protocol):
    """An answer under way."""

    def step(self) -> bool:
        """Send the next token and return True, or return False while the peer is behind."""

    @property
    def over(self) -> bool: ...


class Timer(Protocol):
    """The part of an event loop that the pace uses. Times are seconds of its clock."""

    def time(self) -> float: ...
    def call_at(self, when: float, callback: Callable[[], None]) -> object: ...


@dataclass
class Counts:
    """What was done since the start.

    held: turns in which a stream got nothing, because its peer did not read.
    late_steps: steps given up because the process could not keep the pace.
    """

    tokens_sent: int = 0
    steps: int = 0
    held: int = 0
    late_steps: int = 0


class Pace:
    """Steps on absolute deadlines, so that the pace never drifts."""

    def __init__(self, timer: Timer, tokens_per_s: float) -> None:
        self._timer = timer
        self._period_s = 1 / tokens_per_s
        self._streams: set[Stream] = set()
        self._due_s = 0.0
        self.counts = Counts()

    def start(self) -> None:
        self._due_s = self._timer.time() + self._period_s
        self._timer.call_at(self._due_s, self._step)

    def add(self, stream: Stream) -> None:
        """Give `stream` a token in each step, from the next, until it is over or discarded."""
        self._streams.add(stream)

    def discard(self, stream: Stream) -> None:
        self._streams.discard(stream)

    def stats(self) -> dict[str, int]:
        return {"streams": len(self._streams), **asdict(self.counts)}

    def _step(self) -> None:
        sent = 0
        for stream in list(self._streams):
            sent += stream.step()
            if stream.over:
                self._streams.discard(stream)
        self.counts.tokens_sent += sent
        self.counts.steps += 1
        self._wait()

    def _wait(self) -> None:
        self._due_s += self._period_s
        behind_s = self._timer.time() - self._due_s
        if behind_s > LATEST_S:
            self.counts.late_steps += round(behind_s / self._period_s)
            self._due_s = self._timer.time()
        self._timer.call_at(self._due_s, self._step)
