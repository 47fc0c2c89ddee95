"""Looks at the logs of live streams, and takes the step of their life that each look asks for."""

from __future__ import annotations

import logging
from collections.abc import Callable

from rrpa_sidecar.clock import Clock
from rrpa_sidecar.control.engines import Engine
from rrpa_sidecar.control.lifecycle import State, Step
from rrpa_sidecar.control.live import Advance, LiveStream
from rrpa_sidecar.control.rotation import Rotation
from rrpa_sidecar.errors import CapacityExhausted, CorruptLog, EngineLost, SegmentMissing
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import SegmentDirectory
from rrpa_sidecar.shm.reader import LogReader
from rrpa_sidecar.shm.reclaim import Reclaim, reclaim
from rrpa_sidecar.shm.segment import probe_unlocked
from rrpa_sidecar.stream.progress import Progress

log = logging.getLogger(__name__)

URGENT_MISSES = 8
QUIET_MISSES = 2
"""Looks without news per sweep: at streams that should change soon, and at those that an engine
works on. A miss is a read or an open() in vain, 10 µs in a loop and 40 µs in a process that has
just been woken (measured with 500 streams: 8 of them 20 times a second were 0.7 % of a core).
A look with news is followed by the next, so a burst is found at once."""

GIVEN_UP = "the engine gave the stream up without an end,"


MAY_HAVE_A_LOG = frozenset({State.SUBMITTED, State.STOPPING})
"""States in which an engine may have created the log since it was looked for last."""


class Watch:
    """Which streams to look at, when, and what to see there.

    The tables of the engines say which logs moved, but nothing relies on being told: an engine may
    forget a word, and none says that a writer vanished. Hence the rotations; and `_unread`, for
    clients too slow to see the end themselves. A stream that a front end takes the short way is
    not told of here until its log ends, or its front end asks to be woken again.
    """

    def __init__(
        self,
        directory: SegmentDirectory,
        stream_bytes: int,
        lost_after_ns: int,
        clock: Clock,
        advance: Advance,
        show: Callable[[LiveStream], None],
        quarantine: Callable[[Engine, CorruptLog], None],
    ) -> None:
        """
        show: called when a stream's log was seen, for readers that have waited for it.
        quarantine: called with the engine whose log breaks a rule.
        """
        self._directory = directory
        self._stream_bytes = stream_bytes
        self._lost_after_ns = lost_after_ns
        self._clock = clock
        self._advance = advance
        self._show = show
        self._quarantine = quarantine
        self.starving = False
        """Too many files are open, and the log says so already."""
        self._unread: dict[LiveStream, None] = {}
        self._urgent: Rotation[LiveStream] = Rotation()
        self._quiet: Rotation[LiveStream] = Rotation()
        self._losing: Rotation[LiveStream] = Rotation()
        self._found: Rotation[LiveStream] = Rotation()
        self._rotations = {
            State.SUBMITTED: self._quiet,
            State.CORRUPT: self._urgent,
            State.LEAVING: self._urgent,
            State.STREAMING: self._quiet,
            State.STOPPING: self._urgent,
            State.LOSING: self._losing,
            State.FOUND: self._found,
        }
        self._looks: dict[State, Callable[[LiveStream], bool]] = {
            State.SUBMITTED: self._look_for_log,
            State.STREAMING: self._look_at_log,
            State.STOPPING: self._look_for_stop,
            State.FOUND: self._look_at_log,
            State.CORRUPT: self._look_for_writer,
            State.LOSING: self._look_for_last_bytes,
            State.LEAVING: self._look_for_stop,
        }

    def entered(self, stream: LiveStream, old: State, new: State) -> None:
        """Take note of a step."""
        if old in self._rotations:
            self._rotations[old].discard(stream)
        if new in self._rotations:
            self._rotations[new].add(stream)
        if new is State.GONE:
            self._unread.pop(stream, None)

    def moved(self, stream: LiveStream) -> None:
        """The table says that the stream's log moved, and the short way did not take it."""
        if not stream.readings and stream.state is State.STREAMING:
            if stream.word & 1:  # nobody else would see the end, and the slot wait for a sweep
                self._refresh(stream)
        elif stream.state is State.STREAMING:
            # The front end will read the header; reading it here as well would double the cost.
            self._unread[stream] = None
            stream.wake()
        else:
            self.look(stream)

    def polled(self, stream: LiveStream) -> None:
        """The front end has just read the log's header."""
        self._unread.pop(stream, None)
        self._settle(stream)

    @property
    def hurried(self) -> bool:
        """Whether something should change soon that no bell announces."""
        return any(map(len, (self._urgent, self._losing, self._found)))

    def turn(self) -> None:
        """Look at everything whose turn it is."""
        for stream in list(self._unread):
            self._refresh(stream)
            stream.wake()
        self._losing.turn_all(self.look)
        self._found.turn_all(self.look)
        self._urgent.turn(self.look, URGENT_MISSES)
        self._quiet.turn(self.look, QUIET_MISSES)

    def look(self, stream: LiveStream) -> bool:
        """See how a stream stands, without delivering anything. True: there was news."""
        look = self._looks.get(stream.state)
        return look is not None and look(stream)

    def look_for_end(self, stream: LiveStream) -> None:
        """Take note of an end that the engine has written and nobody has read."""
        if stream.progress is not None:
            self._refresh(stream)
        elif stream.state in MAY_HAVE_A_LOG:
            self._look_for_log(stream)

    def lose_again(self, stream: LiveStream, why: str, committed: int) -> None:
        """Let a FOUND stream end as it did when it was in memory."""
        _progress_of(stream).lose_again(why, committed)
        if not self._settle(stream):
            self._advance(stream, Step.WRITER_GONE)

    def _look_for_log(self, stream: LiveStream) -> bool:
        assert stream.engine is not None
        try:
            stream.log = LogReader.open(
                self._directory,
                stream.stream_id,
                stream_bytes=None if stream.adopted else self._stream_bytes,
                owner=stream.engine.table.owner,
            )
        except SegmentMissing as error:
            if not _was_born(stream):
                return False
            removed = CorruptLog(f"{error}, and it had begun; somebody has removed it")
            self._break(stream, removed, removed)
            return True
        except CapacityExhausted as error:  # its bytes wait in the log, and nothing is lost
            if not self.starving:
                log.error("streams wait unread: %s", error)
            self.starving = True
            return False
        except CorruptLog as error:
            self._break(stream, error, error)
            return True
        self.starving = False
        stream.progress = Progress(stream.log)
        self._advance(stream, Step.LOG_SEEN)
        self._refresh(stream)
        self._show(stream)
        return True

    def _look_at_log(self, stream: LiveStream) -> bool:
        progress = _progress_of(stream)
        gone = progress.is_abandoned()  # before the refresh: the writer may end and go in between
        if self._refresh(stream):
            stream.wake()
            return True
        if gone:
            progress.lose(GIVEN_UP)
            self._advance(stream, Step.WRITER_GONE)
            stream.wake()
        elif not stream.caught_up:
            # Its word was forgotten, or a client is slow; we cannot tell, and a wake in vain
            # costs little. It is no news: all slow clients would be looked at in each sweep.
            stream.wake()
        return gone

    def _look_for_stop(self, stream: LiveStream) -> bool:
        if stream.corrupt:
            return self._look_for_writer(stream)
        if stream.progress is None:
            return self._look_for_log(stream)
        return self._look_at_log(stream)

    def _look_for_writer(self, stream: LiveStream) -> bool:
        """See whether the writer of a corrupt log is gone."""
        if not self._has_no_writer(stream):
            return False
        self._advance(stream, Step.WRITER_GONE)
        return True

    def _has_no_writer(self, stream: LiveStream) -> bool:
        if stream.log is not None:  # its name may be another file's by now
            return probe_unlocked(stream.log.fd)
        try:
            outcome = reclaim(self._directory, layout.log_name(stream.stream_id))
        except OSError:  # too many files are open
            return False
        if outcome in (Reclaim.MISSING, Reclaim.FOREIGN):  # which says nothing about the writer
            return _says_ended(stream)
        return outcome is not Reclaim.HELD

    def _look_for_last_bytes(self, stream: LiveStream) -> bool:
        """See whether a lost engine's log will not grow any more."""
        engine = stream.engine
        assert engine is not None
        late = self._clock.now_ns() - engine.lost_ns >= self._lost_after_ns
        dead = engine.dead  # before the look: it may write its first bytes and die in between
        if stream.progress is None and not self._look_for_log(stream):
            if not dead and not late:
                return False  # it may come back and announce what it has not begun
            sentence = f"{engine.lost_why} before its first byte; try again"
            self._advance(stream, Step.LOSE, EngineLost(sentence))
            return True
        if stream.state is not State.LOSING:  # the log was found, and final or corrupt
            return True
        progress = _progress_of(stream)
        gone = progress.is_abandoned()
        if self._refresh(stream):
            stream.wake()
            return True
        if not gone and not late:
            return False
        progress.lose(engine.lost_why)
        self._advance(stream, Step.LOSE)
        stream.wake()
        return True

    def _refresh(self, stream: LiveStream) -> bool:
        """Read the log's header. True: the stream is over, since now."""
        self._unread.pop(stream, None)
        _progress_of(stream).refresh()
        return self._settle(stream)

    def _settle(self, stream: LiveStream) -> bool:
        """Take the step that a final log asks for, once. True: it was taken now."""
        progress = stream.progress
        if progress is None or stream.settled or not progress.final or progress.lost:
            return False
        stream.settled = True
        if progress.broken is not None:
            self._break(stream, progress.broken)
        else:
            self._advance(stream, Step.FINAL)
        return True

    def _break(self, stream: LiveStream, error: CorruptLog, last: CorruptLog | None = None) -> None:
        log.error("stream %s: corrupt log: %s", stream.stream_id, error)
        stream.corrupt = stream.settled = True
        self._advance(stream, Step.BREAK, last)
        if stream.engine is not None:
            self._quarantine(stream.engine, error)


def _was_born(stream: LiveStream) -> bool:
    """Whether the table says that the log of a stream's slot is another than before it came."""
    engine = stream.engine
    if engine is None or engine.blind or stream.turn is None:
        return False
    return engine.table.last_turn(stream.slot) != stream.turn


def _says_ended(stream: LiveStream) -> bool:
    """Whether the table says that a stream's writer has ended it, or can say nothing about it."""
    engine = stream.engine
    if engine is None or engine.blind or stream.turn is None:
        return True
    return _was_born(stream) and engine.table.word(stream.slot)[1]


def _progress_of(stream: LiveStream) -> Progress:
    assert stream.progress is not None
    return stream.progress
