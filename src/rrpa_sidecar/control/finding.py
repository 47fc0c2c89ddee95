"""Finds the stream that an id names: in memory, kept, in the directory, or yet to be announced."""

from __future__ import annotations

from rrpa_sidecar.clock import Clock
from rrpa_sidecar.control.kept import Kept, KeptStreams
from rrpa_sidecar.control.lifecycle import State, Step
from rrpa_sidecar.control.live import Advance, Labels, LiveStream
from rrpa_sidecar.control.requests import shortened
from rrpa_sidecar.control.watch import Watch
from rrpa_sidecar.errors import InvalidRequest, SegmentMissing, StreamNotFound
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import SegmentDirectory
from rrpa_sidecar.shm.reader import LogReader
from rrpa_sidecar.stream.progress import Progress


class Finder:
    """Makes streams of what earlier sidecars, or this one, have left.

    streams: all that are not GONE, by id; the broker's.
    window_s: how long after its beginning an engine may still announce a stream.
    """

    def __init__(
        self,
        directory: SegmentDirectory,
        streams: dict[str, LiveStream],
        kept: KeptStreams,
        watch: Watch,
        clock: Clock,
        window_s: float,
        advance: Advance,
    ) -> None:
        self._directory = directory
        self._streams = streams
        self._kept = kept
        self._watch = watch
        self._clock = clock
        self._await_until_ns = clock.now_ns() + round(window_s * 1e9)
        self._advance = advance
        self._awaited: dict[LiveStream, None] = {}

    def find(self, stream_id: str, *, wait: bool) -> LiveStream:
        """Return the stream; give it a reader or a wish at once, then `look_at_found`.

        wait: whether one that an engine may still announce is meant, too.

        Raises:
          InvalidRequest: the id is none.
          StreamNotFound: nobody knows it, or its clients have left it.
          CorruptLog: the file of its name is none of ours.
          CapacityExhausted: too many files are open.
        """
        if not layout.is_id(stream_id):
            raise InvalidRequest(
                "stream_id must be the 32 lower-case hex digits of rrpa-stream-id, not"
                f" {shortened(stream_id)}"
            )
        stream = self._streams.get(stream_id)
        if stream is None:
            return self._remembered(stream_id, wait)
        if stream.state is State.LEAVING:
            raise _not_found(stream_id)
        return stream

    def announced(self, stream_id: str, found: LogReader | None) -> LiveStream:
        """Make the stream that an engine has announced and that is not in memory.

        found: its log, if there is one.
        """
        kept = self._kept.take(stream_id)
        stream = self._made(stream_id, State.AWAITED if found is None else State.FOUND, None)
        if found is not None:
            stream.log, stream.progress = found, Progress(found)
        if kept is not None:  # we had given the engine up, and were wrong
            stream.charged_bytes = kept.size_bytes
        return stream

    def was_lost(self, stream_id: str) -> bool:
        """Whether clients were told that nobody will end this stream: then nobody may."""
        kept = self._kept.peek(stream_id)
        return kept is not None and kept.lost_why is not None

    def look_at_found(self, stream: LiveStream) -> None:
        """See how a stream stands that `find` has made."""
        if stream.state is not State.FOUND:
            return
        if stream.kept is not None and stream.kept.lost_why is not None:
            self._watch.lose_again(stream, stream.kept.lost_why, stream.kept.lost_bytes)
        else:
            self._watch.look(stream)

    def forget(self, stream: LiveStream) -> None:
        """Take note that a stream is not AWAITED any more."""
        self._awaited.pop(stream, None)

    def sweep(self, now_ns: int) -> None:
        """Wait no more for what no engine has announced in time."""
        while self._awaited and now_ns >= self._await_until_ns:
            stream = next(iter(self._awaited))  # who is told of one may leave others
            self._advance(stream, Step.REFUSE, _not_found(stream.stream_id))

    def _remembered(self, stream_id: str, wait: bool) -> LiveStream:
        kept = self._kept.peek(stream_id)
        if kept is not None and kept.last is not None:
            self._kept.take(stream_id)
            return self._made(stream_id, State.ENDED, kept)
        try:
            log = LogReader.open(self._directory, stream_id, stream_bytes=None)
        except SegmentMissing:
            self._kept.drop(stream_id)
            if not wait or self._clock.now_ns() >= self._await_until_ns:
                raise _not_found(stream_id) from None
            return self._unseen(stream_id)
        stream = self._made(stream_id, State.FOUND, self._kept.take(stream_id))
        stream.log = log
        stream.progress = Progress(log)
        return stream

    def _unseen(self, stream_id: str) -> LiveStream:
        stream = self._made(stream_id, State.AWAITED, None)
        self._awaited[stream] = None
        return stream

    def _made(self, stream_id: str, state: State, kept: Kept | None) -> LiveStream:
        # Whose it was is not in the file; that it can be resumed shows.
        labels = Labels(request_id="", stream_id="", resumable=state is not State.AWAITED)
        model = kept.model if kept else ""
        stream = LiveStream(self._clock, stream_id, model, labels, state=state)
        if kept is not None:
            stream.kept, stream.last, stream.charged_bytes = kept, kept.last, kept.size_bytes
        self._streams[stream_id] = stream
        self._watch.entered(stream, State.GONE, state)
        return stream


def _not_found(stream_id: str) -> StreamNotFound:
    return StreamNotFound(
        f"no stream {stream_id}: the id is wrong, or the stream is over for longer than it is"
        " kept (--shm-timeout) or was left"
    )
