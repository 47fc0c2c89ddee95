"""Turns one growing log into events: whole characters first, then exactly one end."""

from __future__ import annotations

from os import pread
from typing import Protocol
from zlib import crc32

from rrpa_sidecar.errors import CorruptLog, EngineFailed, EngineLost, EngineStatus
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.stream.events import Data, Event, Failed, Finished
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

REASON_ERROR = 5  # FINISH_REASON_ERROR of rrpa.proto: never shown to a client as a finish


class Log(Protocol):
    """The part of `shm.reader.LogReader` that a stream needs."""

    @property
    def fd(self) -> int: ...

    def progress(self, promised_bytes: int = 0) -> tuple[int, End | None]: ...

    def read(self, position: int, limit: int) -> bytes: ...

    def writer_gone(self) -> bool: ...


class StreamReader:
    """One client's place in one log.

    `poll()` never waits. After `Finished` or `Failed` it gives None for ever.
    """

    __slots__ = (
        "_committed",
        "_end",
        "_fd",
        "_held",
        "_log",
        "_lost",
        "_over",
        "_shift",
        "_turn",
        "broken",
        "offset",
        "replaced",
    )

    def __init__(self, log: Log) -> None:
        self._log = log
        self.offset = 0
        """Bytes delivered, after replacement."""
        self._shift = _DATA  # from there to the place in the file of the next raw byte
        self._held = 0  # raw bytes from there on that are known to be half a character
        self._committed = 0
        self._end: End | None = None
        self._lost: str | None = None
        self._over = False
        self._turn = _NO_TURN
        self.broken: CorruptLog | None = None
        self._fd = log.fd
        self.replaced = 0
        """U+FFFD made so far."""

    @property
    def _position(self) -> int:
        """Raw bytes consumed."""
        return self.offset + self._shift - _DATA

    @property
    def final(self) -> bool:
        """Whether the log has told all it ever will; some of it may not be delivered yet."""
        return self._end is not None or self._lost is not None or self.broken is not None

    @property
    def lost(self) -> bool:
        """Whether `lose` has ended the stream."""
        return self._lost is not None

    @property
    def caught_up(self) -> bool:
        """Whether `poll` would find nothing, unless the log has moved since it was last read."""
        return self._over or not (self.final or self._committed > self._position + self._held)

    def is_abandoned(self) -> bool:
        """Whether the log has no writer any more and no end. Refresh after it, then believe it."""
        if self.final:
            return False
        try:
            return self._log.writer_gone()
        except CorruptLog as error:
            self._break(error)
            return False

    def refresh(self) -> None:
        """Look at the log's header without delivering anything."""
        if self.final:
            return
        try:
            self._committed, self._end = self._log.progress(self._position + self._held)
        except CorruptLog as error:
            self._break(error)
        if self._end is not None:
            self._turn = _NO_TURN

    def lose(self, why: str) -> None:
        """Settle for what is committed now: nobody will write the end. No effect after an end.

        why: subject and verb of the sentence for the client, "engine x was lost".
        """
        self.refresh()
        if not self.final:
            self._lost = why
            self._turn = _NO_TURN

    def trust(self, word: int) -> bool:
        """Let `promised` take the words of this one's turn, if the header agrees with it.

        word: of the log's slot in its table, read before the header was.
        """
        if self.final or not 0 < word >> 1 & layout.WORD_COMMITTED_MASK <= self._committed:
            return False
        turn = word & layout.WORD_TURN_MASK
        # One object for all streams with this turn: those of a step are cold in the caches.
        if len(_TURNS) > _TURNS_LIMIT:
            _TURNS.clear()
        self._turn = _TURNS.setdefault(turn, turn - (_DATA << 1))
        return True

    def distrust(self) -> None:
        """Let no word promise anything any more: the log may be closed from now on."""
        self._turn = _NO_TURN

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
            if len(raw) != size:
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
        self.refresh()
        try:
            data = self._take(max(limit_bytes, LONGEST_CHARACTER_BYTES))
        except CorruptLog as error:
            self._break(error)
            data = b""
        if data:
            return Data(self.offset - len(data), data)
        if not self.final:
            return None
        self._over = True
        return self._last()

    def _take(self, limit: int) -> bytes:
        pending = self._committed - self._position
        if self.broken or pending <= (0 if self.final else self._held):
            return b""
        raw = self._log.read(self._position, min(limit, pending))
        return self._advance(raw, self.final and len(raw) == pending)

    def _advance(self, raw: bytes, final: bool) -> bytes:
        """Take the whole characters of `raw`, which begins at `_position`."""
        cut = whole_characters(raw, final)
        self._held = len(raw) - cut.consumed
        self.replaced += cut.replaced
        self.offset += len(cut.data)
        self._shift += cut.consumed - len(cut.data)
        return cut.data

    def _break(self, error: CorruptLog) -> None:
        self.broken = error
        self._turn = _NO_TURN

    def _last(self) -> Finished | Failed:
        end = self._end
        if self.broken is not None:
            return Failed(self.offset, self.broken)
        if end is None:
            # Retrying is for a caller who has shown nobody a byte yet: rrpa.proto, UNAVAILABLE.
            sentence = f"{self._lost} after {self.offset} bytes; try again only if you had none"
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

    __slots__ = ()
    offset = 0
    replaced = 0
    caught_up = True

    def poll(self, limit_bytes: int = FRAME_LIMIT_BYTES) -> Event | None:
        return None


class OneFailure:
    """Stands for a log that never was: one `Failed` and no byte."""

    __slots__ = ("_event",)
    offset = 0
    replaced = 0

    def __init__(self, event: Failed) -> None:
        self._event: Failed | None = event

    @property
    def caught_up(self) -> bool:
        return self._event is None

    def poll(self, limit_bytes: int = FRAME_LIMIT_BYTES) -> Event | None:
        event, self._event = self._event, None
        return event
