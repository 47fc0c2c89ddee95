"""Brings streams that outlive an attachment together with the engine that still has them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import replace

from rrpa_sidecar.control.admission import Budget
from rrpa_sidecar.control.engines import NO_SLOT, Engine
from rrpa_sidecar.control.finding import Finder
from rrpa_sidecar.control.leftovers import Leftovers
from rrpa_sidecar.control.lifecycle import GENERATES, HOLDS_SLOT, State, Step
from rrpa_sidecar.control.live import Advance, LiveStream
from rrpa_sidecar.control.readers import Readers
from rrpa_sidecar.control.watch import Watch
from rrpa_sidecar.errors import CapacityExhausted, CorruptLog, EngineLost, SegmentMissing
from rrpa_sidecar.metrics import Totals
from rrpa_sidecar.pb.engine_pb2 import OpenStream
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import SegmentDirectory
from rrpa_sidecar.shm.reader import LogReader

log = logging.getLogger(__name__)

UNBORN_PER_CALL = 4
"""Streams for each call that may be open up to which engines may announce such as have no file:
those of this sidecar and of the one before, each with its readers' own, and as many again."""

TAKES_ENGINE = frozenset({State.LOSING, State.AWAITED, State.FOUND})
"""States in which an engine may announce a stream."""


class Adoption:
    """Says Adopt or Cancel to what engines announce.

    Readers that have such a stream open read on, and those that wait for it begin. One without
    any is given the time of a resume window to find one, whatever its first client had asked
    for: that a sidecar died is no client's leaving.

    streams: all that are not GONE, by id; the broker's.
    max_open_calls: as the settings have it. While there are `UNBORN_PER_CALL` times as many,
      no stream is taken in that nobody waits for and that has no file: to announce it costs its
      engine nothing, and may be a lie.
    """

    def __init__(
        self,
        directory: SegmentDirectory,
        streams: dict[str, LiveStream],
        finder: Finder,
        readers: Readers,
        watch: Watch,
        leftovers: Leftovers,
        budget: Budget,
        max_open_calls: int,
        totals: Totals,
        advance: Advance,
    ) -> None:
        self._directory = directory
        self._streams = streams
        self._finder = finder
        self._readers = readers
        self._watch = watch
        self._leftovers = leftovers
        self._budget = budget
        self._unborn_limit = UNBORN_PER_CALL * max_open_calls
        self._totals = totals
        self._advance = advance

    def stale(self, engine: Engine, announced: Iterable[OpenStream]) -> set[Engine]:
        """Return the attachments of which `engine` is the continuation, by their streams.

        An engine may be back before the end of its old call was noticed. Only its name and its
        user tell it from one that has no right to these ids, which are names of files: whoever may
        list the directory knows them.
        """
        holders = set(filter(None, map(self._holder, announced))) - {engine}
        return {held for held in holders if _is_same(held, engine)}

    def answer(self, engine: Engine, announced: Iterable[OpenStream]) -> None:
        """Answer for each stream: first all get their slots, then each is looked at.

        A look may find that a stream is over, and so free a slot that a queued one takes.
        """
        taken = [(each, self._take(engine, each)) for each in announced]
        for each, stream in taken:
            if stream is None:
                engine.link.cancel(each.stream_id)
            else:
                self._look(stream, each.begun)

    def charge(self, stream: LiveStream) -> None:
        """Charge the whole file of a stream that was taken in, from when it is seen: it grows.

        Not before: what engines say shall not take the room of streams that are there.
        """
        assert stream.log is not None
        self._budget.give_back(stream.charged_bytes)
        stream.charged_bytes = layout.HEADER_BYTES + stream.log.capacity_bytes
        self._budget.charge(stream.charged_bytes)

    def _holder(self, announced: OpenStream) -> Engine | None:
        stream = self._streams.get(announced.stream_id)
        return stream.engine if stream is not None and stream.state in HOLDS_SLOT else None

    def _take(self, engine: Engine, announced: OpenStream) -> LiveStream | None:
        """Let `engine` have the stream, and say so; None: it shall stop."""
        stream = self._streams.get(announced.stream_id)
        if not engine.takes_more:
            return None
        if stream is None:
            stream = self._unknown(engine, announced.stream_id)
        elif stream.state not in TAKES_ENGINE or not _may_own(engine, stream):
            return None
        if stream is None:
            return None
        stream.adopted = stream.adopted or stream.state is not State.LOSING
        stream.model = announced.model
        stream.resumable = announced.resumable
        stream.labels = replace(stream.labels, request_id=announced.request_id)
        stream.engine, stream.word = engine, 0
        stream.slot = engine.adopt(stream)
        engine.link.adopt(stream.stream_id, None if stream.slot == NO_SLOT else stream.slot)
        self._advance(stream, Step.ADOPT)
        if stream.progress is not None:
            stream.progress.trust_nobody()  # words of another table, of other turns
            self._advance(stream, Step.LOG_SEEN)
        return stream

    def _unknown(self, engine: Engine, stream_id: str) -> LiveStream | None:
        """Make a stream that is not in memory; None: nobody wants it, or not from this engine."""
        if layout.log_name(stream_id) in self._leftovers or self._finder.was_lost(stream_id):
            return None
        try:
            found = LogReader.open(
                self._directory, stream_id, stream_bytes=None, owner=engine.table.owner
            )
        except CorruptLog as error:
            log.error("engine %s announced a stream it cannot have: %s", engine.name, error)
            return None
        except (SegmentMissing, CapacityExhausted):  # not begun, or for the watch to open later
            if len(self._streams) >= self._unborn_limit:
                return None
            found = None
        return self._finder.announced(stream_id, found)

    def _look(self, stream: LiveStream, begun: bool) -> None:
        """See how far the stream has come meanwhile; it may be over."""
        if stream.stop_wanted and stream.state in GENERATES:  # its readers may be gone meanwhile
            self._advance(stream, Step.STOP)
        self._watch.look(stream)
        if begun and stream.state is State.SUBMITTED and not self._watch.starving:
            assert stream.engine is not None
            stream.engine.link.cancel(stream.stream_id)
            sentence = "the stream's file was removed while its engine was away; try again"
            self._advance(stream, Step.REJECT, EngineLost(sentence))
        if stream.state not in GENERATES:
            return
        self._totals.streams_adopted += 1
        if not stream.readings:
            stream.unclaimed = True
            self._readers.forget(stream)  # a window that had begun begins again
            self._readers.miss(stream)


def _may_own(engine: Engine, stream: LiveStream) -> bool:
    """Whether `engine` has the user of the stream's log, or of the engine that it was lost with."""
    if stream.log is not None:
        return os.fstat(stream.log.fd).st_uid == engine.table.owner
    return stream.engine is None or stream.engine.table.owner == engine.table.owner


def _is_same(old: Engine, new: Engine) -> bool:
    return (old.name, old.table.owner) == (new.name, new.table.owner)
