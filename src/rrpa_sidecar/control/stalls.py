"""Streams that make no progress although their writer lives: reported, and nothing is taken.

A stopped engine, a hung one and one that thinks for long look the same from here: the lease is
held. None of them is dead, so their streams stay theirs. Who reads the metric can tell.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rrpa_sidecar.control.lifecycle import HOLDS_SLOT, State
from rrpa_sidecar.control.live import LiveStream

log = logging.getLogger(__name__)

LOOKS = 20
"""Looks in each timeout, and so the share of it by which a report may be late. A look is 1 µs for
each stream."""
WATCHED = HOLDS_SLOT | {State.FOUND}


@dataclass(slots=True)
class _Seen:
    mark: int
    since_ns: int
    stalled: bool = False


class Stalls:
    """Which streams stand still. Pure.

    timeout_ns: without progress for so long, a stream is stalled.
    look: has the log itself looked at, since no table is bound to tell; it may end the stream.
    """

    def __init__(self, timeout_ns: int, look: Callable[[LiveStream], object]) -> None:
        self._timeout_ns = timeout_ns
        self._look = look
        self._due_ns = 0
        self._seen: dict[LiveStream, _Seen] = {}
        self.count = 0
        """Streams that were stalled at the last look."""

    def sweep(self, streams: Iterable[LiveStream], now_ns: int) -> None:
        """Look at all that an engine may be writing, if it is time."""
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + self._timeout_ns // LOOKS
        before, self._seen = self._seen, {}
        for stream in [each for each in streams if each.state in WATCHED]:
            seen = before.get(stream) or _Seen(_mark(stream), now_ns)
            if not seen.stalled and now_ns - seen.since_ns >= self._timeout_ns:
                self._look(stream)
            if stream.state in WATCHED:  # after the look
                self._seen[stream] = seen
                self._judge(stream, seen, now_ns)
        self.count = sum(each.stalled for each in self._seen.values())

    def _judge(self, stream: LiveStream, seen: _Seen, now_ns: int) -> None:
        mark, silent_ns = _mark(stream), now_ns - seen.since_ns
        if mark != seen.mark:
            seen.mark, seen.since_ns, seen.stalled = mark, now_ns, False
        elif not seen.stalled and silent_ns >= self._timeout_ns:
            seen.stalled = True
            log.warning(
                "stream %s is stalled: no progress for %.1f s, at %d bytes; %s still holds it",
                stream.stream_id,
                silent_ns / 1e9,
                mark,
                f"engine {stream.engine.name}" if stream.engine is not None else "its writer",
            )


def _mark(stream: LiveStream) -> int:
    """Return the committed bytes of `stream`, whoever has seen them: a header or the table."""
    if stream.progress is None:  # the word may be of the log before in this slot
        return 0
    committed = stream.progress.committed
    if stream.engine is None or stream.slot < 0:
        return committed
    return max(committed, stream.engine.table.word(stream.slot)[0])
