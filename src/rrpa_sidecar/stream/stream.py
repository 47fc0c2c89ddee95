"""Turns one growing log into events: whole characters first, then exactly one end."""

from __future__ import annotations

from os import pread
from zlib import crc32

from rrpa_sidecar.errors import CorruptLog, EngineFailed, EngineLost, EngineStatus
from rrpa_sidecar.shm import layout
from rrpa_sidecar.stream.events import Data, Event, Failed, Finished
from rrpa_sidecar.stream.progress import Progress
from rrpa_sidecar.stream.text import LONGEST_CHARACTER_BYTES, whole_characters

FRAME_LIMIT_BYTES = 64 * 1024
"""Most raw bytes in one event. A frame of pure garbage is three times as long (U+FFFD)."""

_DATA = layout.HEADER_BYTES
_TAIL, _RESIDUE = layout.TAIL_BYTES, layout.TAIL_RESIDUE

_TURNS: dict[int, int] = {}
_TURNS_LIMIT = 1024
"""All 65,536 are 9 MB, and one slot with short answers comes by all of them."""
_NO_TURN = 1 << 64
"""Above every word of a table, so that none of them promises anything."""

REASON_CANCELLED = 4  # FINISH_REASON_CANCELLED
REASON_ERROR = 5  # FINISH_REASON_ERROR of rrpa.proto: never shown to a client as a finish


class StreamReader:
    """One client's place in one log.

    offset: bytes that the client has, after replacement; its first ones may come from elsewhere.
    position: raw bytes of the log that these and `lead` stand for.
    lead: delivered before anything else: the rest of a character of which the client has a part.

    `poll()` never waits. After `Finished` or `Failed` it gives None for ever.
    """

    __slots__ = (
        "_fd",
        "_held",
        "_lead",
        "_over",
        "_progress",
        "_shift",
        "_turn",
        "offset",
        "replaced",
    )

    def __init__(
        self, progress: Progress, offset: int = 0, position: int = 0, lead: bytes = b""
    ) -> None:
        self._progress = progress
        self.offset = offset + len(lead)
        """Bytes delivered, after replacement, and those of `unread_bytes`."""
        self._shift = _DATA + position - self.offset  # to the place in the file of the next byte
        self._held = 0  # raw bytes from there on that are known to be half a character
        self._lead = lead
        self._over = False
        self._turn = _NO_TURN
        self._fd = progress.log.fd
        self.replaced = 0
        """U+FFFD made so far."""

    @property
    def _position(self) -> int:
        """Raw bytes consumed."""
        return self.offset + self._shift - _DATA

    @property
    def taken(self) -> int:
        """Raw bytes taken; some may wait here for the rest of their character."""
        return self._position + self._held

    @property
    def unread_bytes(self) -> int:
        """Bytes of `offset` that are not delivered yet."""
        return len(self._lead)

    @property
    def caught_up(self) -> bool:
        """Whether `poll` would find nothing, unless the log has moved since it was last read."""
        progress = self._progress
        return self._over or not (progress.final or progress.committed > self.taken or self._lead)

    def trust(self, word: int) -> bool:
        """Let `promised` take the words of this one's turn, if the header agrees with it.

        Another reader of the log that trusts them stops doing so.

        word: of the log's slot in its table, read before the header was.
        """
        progress = self._progress
        if progress.final or self._lead:
            return False
        if not 0 < word >> 1 & layout.WORD_COMMITTED_MASK <= progress.committed:
            return False
        if progress.truster is not self:
            progress.trust_nobody()
            progress.truster = self
        turn = word & layout.WORD_TURN_MASK
        # One object for all streams with this turn: those of a step are cold in the caches.
        if len(_TURNS) > _TURNS_LIMIT:
            _TURNS.clear()
        self._turn = _TURNS.setdefault(turn, turn - (_DATA << 1))
        return True

    def distrust(self) -> None:
        """Let no word promise anything any more: the log may be closed from now on."""
        self._turn = _NO_TURN
        if self._progress.truster is self:
            self._progress.truster = None

    def promised(self, word: int, limit_bytes: int, tail: bytes = b"") -> bytes:
        """Return the new characters up to where `word` says; nothing: ask `poll`, which knows why.

        This is the usual way of a token. The table was read for all streams at once, and the tail
        too, so that mostly nothing is left to read; one pread else. `poll` reads the header too.

        word: of the log's slot, not ended.
        limit_bytes: most raw bytes to take; there may be three times as many of the answer.
        tail: the table's record of the log's last bytes, read after `word`.
        """
        at = self.offset + self._shift
        size = (word - self._turn >> 1) - at
        if not 0 < size <= limit_bytes:
            return b""
        if tail and size <= _TAIL and crc32(tail, at + size) == _RESIDUE:
            raw = tail[_TAIL - size : _TAIL]
        else:
            try:
                raw = pread(self._fd, size, at)
            except OSError:
                return b""
            if len(raw) != size or 0 in raw:  # `poll` sees whether a hole is what it came from
                return b""
        if raw.isascii():  # so no byte was held
            self.offset += size
            return raw
        return self._advance(raw, False)

    def poll(self, limit_bytes: int = FRAME_LIMIT_BYTES) -> Event | None:
        """Return the next event, or None while there is nothing new.

        limit_bytes: most raw bytes to take; at least one whole character fits always.
        """
        if self._over:
            return None
        if self._lead:
            lead, self._lead = self._lead, b""
            return Data(self.offset - len(lead), lead)
        progress = self._progress
        progress.refresh()
        try:
            data = self._take(max(limit_bytes, LONGEST_CHARACTER_BYTES))
        except CorruptLog as error:
            progress.spoil(error)
            data = b""
        if data:
            return Data(self.offset - len(data), data)
        if not progress.final:
            return None
        self._over = True
        return self._last()

    def _take(self, limit: int) -> bytes:
        progress = self._progress
        pending = progress.committed - self._position
        if progress.broken or pending <= (0 if progress.final else self._held):
            return b""
        raw = progress.log.read(self._position, min(limit, pending))
        return self._advance(raw, progress.final and len(raw) == pending)

    def _advance(self, raw: bytes, final: bool) -> bytes:
        """Take the whole characters of `raw`, which begins at `_position`."""
        cut = whole_characters(raw, final)
        self._held = len(raw) - cut.consumed
        self.replaced += cut.replaced
        self.offset += len(cut.data)
        self._shift += cut.consumed - len(cut.data)
        return cut.data

    def _last(self) -> Finished | Failed:
        progress = self._progress
        end = progress.end
        if progress.broken is not None:
            return Failed(self.offset, progress.broken)
        if end is None:
            # Retrying is for a caller who has shown nobody a byte yet: rrpa.proto, UNAVAILABLE.
            sentence = (
                f"{progress.lost_why} after {self.offset} bytes; try again only if you had none"
            )
            return Failed(self.offset, EngineLost(sentence))
        if end.code:
            return Failed(self.offset, EngineStatus(end.code, end.text))
        if end.reason == REASON_ERROR:
            text = end.text or "the engine ended the stream with an error and gave no status"
            return Failed(self.offset, EngineFailed(text))
        return Finished(
            offset=self.offset,
            reason=end.reason,
            stop_sequence=_text_of(end.stop_sequence),
            prompt_tokens=end.prompt_tokens,
            completion_tokens=end.completion_tokens,
            cached_tokens=end.cached_tokens,
        )


def _text_of(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", "replace")


class Silence:
    """Stands for a log that does not exist yet."""

    __slots__ = ("offset",)
    replaced = 0
    unread_bytes = 0
    caught_up = True

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset

    def poll(self, limit_bytes: int = FRAME_LIMIT_BYTES) -> Event | None:
        return None


class OneEvent:
    """Stands for a log that never was, or has nothing for this reader: one last event, no byte."""

    __slots__ = ("_event", "offset")
    replaced = 0
    unread_bytes = 0

    def __init__(self, event: Finished | Failed) -> None:
        self._event: Finished | Failed | None = event
        self.offset = event.offset

    @property
    def caught_up(self) -> bool:
        return self._event is None

    def poll(self, limit_bytes: int = FRAME_LIMIT_BYTES) -> Event | None:
        event, self._event = self._event, None
        return event
