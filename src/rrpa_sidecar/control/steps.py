"""The steps of a stream's life, with all that belongs to each; lifecycle.py says who causes one."""

from __future__ import annotations

from rrpa_sidecar.control.adoption import Adoption
from rrpa_sidecar.control.attachments import Attachments
from rrpa_sidecar.control.burial import Burial
from rrpa_sidecar.control.dispatch import Dispatch
from rrpa_sidecar.control.finding import Finder
from rrpa_sidecar.control.lifecycle import (
    GENERATES,
    HOLDS_SLOT,
    TOLD_TO_STOP,
    State,
    Step,
    next_state,
)
from rrpa_sidecar.control.live import LiveStream
from rrpa_sidecar.control.readers import Readers
from rrpa_sidecar.control.watch import Watch
from rrpa_sidecar.errors import RRPAError
from rrpa_sidecar.stream.events import Finished

OVER = frozenset({State.ENDED, State.CORRUPT})
"""States in which only readers are waited for."""


class Steps:
    """The one place where a stream's state changes.

    streams: all that are not GONE, by id; the broker's.
    active: streams that an engine has, or had until their readers have taken the rest.
    """

    def __init__(
        self,
        streams: dict[str, LiveStream],
        dispatch: Dispatch,
        attachments: Attachments,
        adoption: Adoption,
        watch: Watch,
        readers: Readers,
        finder: Finder,
        burial: Burial,
    ) -> None:
        self._streams = streams
        self._dispatch = dispatch
        self._attachments = attachments
        self._adoption = adoption
        self._watch = watch
        self._readers = readers
        self._finder = finder
        self._burial = burial
        self.active = 0

    def advance(
        self, stream: LiveStream, step: Step, last: RRPAError | Finished | None = None
    ) -> None:
        """Take one step of the life table. See `live.Advance`.

        Whoever is told of it may call back: when this returns, the stream may have gone further.
        """
        old, new = stream.state, next_state(stream.state, step)
        if last is not None:
            stream.last = last
        if new is not old:
            stream.state = new
            self._watch.entered(stream, old, new)
            self._entered(stream, old, new)
        if last is not None:
            stream.end(last)

    def _entered(self, stream: LiveStream, old: State, new: State) -> None:
        if old is State.QUEUED:
            self._dispatch.remove(stream)
        if old is State.AWAITED:
            self._finder.forget(stream)
        if old is State.STOPPING and new is State.LOSING:
            stream.stop_wanted = True  # the Cancel may have been lost with the attachment
        if new is State.SUBMITTED and old is not State.LOSING:
            self.active += 1
        if new is State.STREAMING and stream.adopted:
            self._adoption.charge(stream)
        engine = stream.engine
        if engine is not None and old in GENERATES and new in TOLD_TO_STOP:
            engine.link.cancel(stream.stream_id)
        freed = engine is not None and old in HOLDS_SLOT and new not in HOLDS_SLOT
        if engine is not None and freed:
            engine.free_slot(stream.slot, stream)
        if new is State.GONE:
            self._bury(stream, old)
        elif new in OVER and not stream.readings:  # nobody will leave it any more
            self.advance(stream, Step.LEAVE)
        if engine is not None and freed:
            self._attachments.let_go(engine)
            self._dispatch.run()

    def _bury(self, stream: LiveStream, old: State) -> None:
        del self._streams[stream.stream_id]
        self._readers.forget(stream)
        if stream.engine is not None:
            self.active -= 1
        self._burial.bury(stream, old)
        self._dispatch.run()
