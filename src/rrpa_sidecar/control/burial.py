"""What becomes of a stream's file and its share of the budget when the stream is over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container

from rrpa_sidecar.control.admission import Budget
from rrpa_sidecar.control.kept import Kept, KeptStreams, real_bytes
from rrpa_sidecar.control.leftovers import Leftovers
from rrpa_sidecar.control.lifecycle import State
from rrpa_sidecar.control.live import LiveStream
from rrpa_sidecar.metrics import Totals
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.reclaim import Reclaim

log = logging.getLogger(__name__)


class Burial:
    """Removes at once what nobody may come back for, and keeps the rest for a while.

    streams: ids of all that are not GONE.
    """

    def __init__(
        self,
        streams: Container[str],
        leftovers: Leftovers,
        kept: KeptStreams,
        budget: Budget,
        totals: Totals,
    ) -> None:
        self._streams = streams
        self._leftovers = leftovers
        self._kept = kept
        self._budget = budget
        self._totals = totals

    def bury(self, stream: LiveStream, old: State) -> None:
        """See to what a stream leaves that is GONE.

        old: its state before that.
        """
        if stream.log is not None:
            stream.log.close()
        if stream.resumable or stream.unclaimed:
            self._keep(stream, old)
        elif stream.engine is not None:
            self._remove(stream)

    def knows(self, name: str) -> bool:
        """Whether a segment has somebody here who will remove it."""
        if layout.kind_of(name) == "log":
            stream_id = layout.id_of(name)
            if stream_id in self._streams or stream_id in self._kept:
                return True
        return name in self._leftovers

    def keep_orphan(self, name: str, size_bytes: int) -> None:
        """Keep a log that nobody owns for readers who may come back."""

        def on_removed(outcome: Reclaim) -> None:
            if outcome is Reclaim.REMOVED:
                self.count(layout.kind_of(name))

        self._budget.charge(size_bytes)
        self._kept.add(Kept(layout.id_of(name), size_bytes=size_bytes, on_removed=on_removed))
        log.info("found %s, %d bytes, which nobody owns; kept for its readers", name, size_bytes)

    def count(self, kind: str) -> None:
        """Count a file that nobody owned and that was removed here."""
        self._totals.reclaimed[kind] += 1

    def _keep(self, stream: LiveStream, old: State) -> None:
        if old is State.FOUND and stream.kept is None:
            return  # it is live and somebody else's
        kept = Kept(stream.stream_id, stream.model, last=stream.last)
        kept.on_removed = stream.kept.on_removed if stream.kept else _release(stream)
        if stream.progress is not None:
            kept.size_bytes = real_bytes(stream.progress.committed)
            kept.lost_why = stream.progress.lost_why
            kept.lost_bytes = stream.progress.committed
            kept.last = stream.last or stream.progress.broken
        elif stream.kept is not None:
            kept.size_bytes = stream.charged_bytes
        elif stream.engine is not None:  # it may be about to make the file
            self._remove(stream)
        self._budget.give_back(stream.charged_bytes)
        self._budget.charge(kept.size_bytes)
        if kept.size_bytes or kept.last is not None:
            self._kept.add(kept)

    def _remove(self, stream: LiveStream) -> None:
        size_bytes, stream.charged_bytes = stream.charged_bytes, 0
        self._kept.remove_file(stream.stream_id, size_bytes, _release(stream))


def _release(stream: LiveStream) -> Callable[[Reclaim], None]:
    """Return what has the engine remove the stream's file if this process may not."""
    engine, stream_id = stream.engine, stream.stream_id

    def on_removed(outcome: Reclaim) -> None:
        if outcome is Reclaim.DENIED and engine is not None and engine.attached:
            engine.link.release(stream_id)

    return on_removed
