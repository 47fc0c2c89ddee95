"""How far one log is, and how it ends: what all its readers share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rrpa_sidecar.errors import CorruptLog

if TYPE_CHECKING:
    from rrpa_sidecar.shm.end import End


class Log(Protocol):
    """The part of `shm.reader.LogReader` that a stream needs."""

    @property
    def fd(self) -> int: ...

    def progress(self, promised_bytes: int = 0) -> tuple[int, End | None]: ...

    def read(self, position: int, limit: int) -> bytes: ...

    def writer_gone(self) -> bool: ...


class Truster(Protocol):
    """The reader that takes words of the table for the log's cursor."""

    @property
    def taken(self) -> int:
        """Raw bytes that it has taken, some of them perhaps on the word of the table alone."""
        ...

    def distrust(self) -> None: ...


class Progress:
    """One log as its last look at the header showed it.

    committed: raw bytes that may be read.
    end: the engine's own, or None.
    lost_why: why nobody will write an end, or None.
    broken: the rule that the log has broken, or None.
    truster: its one reader that believes the table; it stops once `final`.
    """

    __slots__ = ("broken", "committed", "end", "log", "lost_why", "truster")

    def __init__(self, log: Log) -> None:
        self.log = log
        self.committed = 0
        self.end: End | None = None
        self.lost_why: str | None = None
        self.broken: CorruptLog | None = None
        self.truster: Truster | None = None

    @property
    def final(self) -> bool:
        """Whether the log has told all it ever will; some of it may not be delivered yet."""
        return self.end is not None or self.lost_why is not None or self.broken is not None

    @property
    def lost(self) -> bool:
        """Whether `lose` has ended the stream."""
        return self.lost_why is not None

    def refresh(self) -> None:
        """Look at the log's header."""
        if self.final:
            return
        promised = self.truster.taken if self.truster is not None else 0
        try:
            self.committed, self.end = self.log.progress(promised)
        except CorruptLog as error:
            self.spoil(error)
        if self.end is not None:
            self.trust_nobody()

    def is_abandoned(self) -> bool:
        """Whether the log has no writer any more and no end. Refresh after it, then believe it."""
        if self.final:
            return False
        try:
            return self.log.writer_gone()
        except CorruptLog as error:
            self.spoil(error)
            return False

    def lose(self, why: str) -> None:
        """Settle for what is committed now: nobody will write the end. No effect after an end.

        why: subject and verb of the sentence for the client, "engine x was lost".
        """
        self.refresh()
        if not self.final:
            self.lost_why = why
            self.trust_nobody()

    def lose_again(self, why: str, committed: int) -> None:
        """Settle for what readers were given when it was lost, whatever was written since.

        They may hold a replacement for half a character that the log has whole by now.
        """
        self.refresh()
        if self.broken is None:
            self.committed, self.end, self.lost_why = min(committed, self.committed), None, why

    def spoil(self, error: CorruptLog) -> None:
        """Take note that the log breaks a rule: nothing more of it can be believed."""
        self.broken = error
        self.trust_nobody()

    def trust_nobody(self) -> None:
        """Have no reader believe the table from now on."""
        if self.truster is not None:
            self.truster.distrust()
