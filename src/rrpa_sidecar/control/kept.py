"""Files of streams that are over, kept for readers who may come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from rrpa_sidecar.clock import Clock
from rrpa_sidecar.control.admission import Budget
from rrpa_sidecar.control.leftovers import Leftovers
from rrpa_sidecar.errors import RRPAError
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.reclaim import Reclaim
from rrpa_sidecar.stream.events import Finished

LIMIT = 10_000
"""Streams kept at once that have a file, and as many that have none; of one more of its kind the
oldest goes. Each is some 500 bytes of memory here."""

REMOVED_PER_SWEEP = 256
"""Files, 60 µs each: many may be due at once, after an engine's death or a stop of this process."""

_PAGE_BYTES = 4096


def real_bytes(committed_bytes: int) -> int:
    """Return what a log takes of the file system: pages of its header and of its data."""
    return layout.HEADER_USED_BYTES + -(-committed_bytes // _PAGE_BYTES) * _PAGE_BYTES


@dataclass(slots=True, eq=False)
class Kept:
    """What is remembered of one stream.

    model: "" for a file of an earlier sidecar.
    size_bytes: of the budget; 0 where there is no file.
    lost_why: why its readers were told that nobody writes its end, after `lost_bytes` of the log;
      None: they were not, and the file tells how it ended.
    last: all that a reader gets, where that is not in the file.
    on_removed: told the outcome when the file is gone.
    """

    stream_id: str
    model: str = ""
    size_bytes: int = 0
    lost_why: str | None = None
    lost_bytes: int = 0
    last: RRPAError | Finished | None = None
    on_removed: Callable[[Reclaim], None] | None = None
    due_ns: int = 0


class KeptStreams:
    """Remembers each for `--shm-timeout`, then removes its file. Oldest first, in all that it does.

    on_freed: called when budget was given back.
    """

    def __init__(
        self,
        leftovers: Leftovers,
        budget: Budget,
        clock: Clock,
        timeout_s: float,
        on_freed: Callable[[], None],
    ) -> None:
        self._leftovers = leftovers
        self._budget = budget
        self._clock = clock
        self._timeout_ns = round(timeout_s * 1e9)
        self._on_freed = on_freed
        self._files: dict[str, Kept] = {}
        # Apart: a refused request costs its caller nothing, and must not push out any answer.
        self._words: dict[str, Kept] = {}
        self.size_bytes = 0
        """Of all files that are kept."""

    def __len__(self) -> int:
        return len(self._files) + len(self._words)

    def __contains__(self, stream_id: str) -> bool:
        return self.peek(stream_id) is not None

    @property
    def due_ns(self) -> int | None:
        """When the oldest is due."""
        return min((oldest.due_ns for oldest in self._oldest()), default=None)

    def add(self, kept: Kept) -> None:
        """Keep a stream whose bytes are charged already; it must not be kept yet."""
        kept.due_ns = self._clock.now_ns() + self._timeout_ns
        kind = self._files if kept.size_bytes else self._words
        kind[kept.stream_id] = kept
        self.size_bytes += kept.size_bytes
        if len(kind) > LIMIT:
            self._remove(next(iter(kind.values())))

    def take(self, stream_id: str) -> Kept | None:
        """Give back what is known of a stream that has a reader again; it is not kept any more."""
        kept = self._files.pop(stream_id, None) or self._words.pop(stream_id, None)
        if kept is not None:
            self.size_bytes -= kept.size_bytes
        return kept

    def peek(self, stream_id: str) -> Kept | None:
        """Return what is known of a stream, which is kept on."""
        return self._files.get(stream_id) or self._words.get(stream_id)

    def drop(self, stream_id: str) -> None:
        """Take note that somebody else has removed a file."""
        kept = self.take(stream_id)
        if kept is not None:
            self._budget.give_back(kept.size_bytes)
            self._on_freed()

    def evict(self, short_bytes: int) -> bool:
        """Remove the oldest file; False: all together do not have `short_bytes`, and none is."""
        if self.size_bytes < short_bytes:
            return False
        oldest = next(iter(self._files.values()), None)
        if oldest is not None:
            self._remove(oldest)
        return oldest is not None

    def sweep(self, now_ns: int) -> None:
        """Remove those that are due, some at a time."""
        for _ in range(REMOVED_PER_SWEEP):
            due = [oldest for oldest in self._oldest() if oldest.due_ns <= now_ns]
            if not due:
                return
            for oldest in due:
                self._remove(oldest)

    def _oldest(self) -> Iterator[Kept]:
        """Yield the oldest of each kind."""
        for kind in (self._files, self._words):
            yield from islice(kind.values(), 1)

    def _remove(self, kept: Kept) -> None:
        self.take(kept.stream_id)
        if kept.size_bytes:
            self.remove_file(kept.stream_id, kept.size_bytes, kept.on_removed)

    def remove_file(
        self, stream_id: str, size_bytes: int, on_removed: Callable[[Reclaim], None] | None = None
    ) -> None:
        """Remove a log as soon as nobody writes it; then its bytes are given back."""

        def on_done(outcome: Reclaim) -> None:
            if on_removed is not None:
                on_removed(outcome)
            self._budget.give_back(size_bytes)
            self._on_freed()

        self._leftovers.add(layout.log_name(stream_id), on_done)
