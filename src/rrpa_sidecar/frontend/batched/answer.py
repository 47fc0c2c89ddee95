"""What a sender asks of an answer: its messages, one at a time, and its end. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rrpa_sidecar.frontend.metadata import Pairs
from rrpa_sidecar.status import Code

if TYPE_CHECKING:
    from rrpa_sidecar.frontend.batched.outgoing import Outgoing

MESSAGE_OVERHEAD_BYTES = 24
"""Most bytes that a message adds to a piece of the answer: gRPC's prefix, tags, lengths, offset."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of an answer."""

    code: Code
    text: str = ""
    metadata: Pairs = ()
    broken: bool = False
    """No trailers reach this caller: the stream is reset, so that it does not look complete."""


class Answer(Protocol):
    """The messages of one answer, taken one at a time, each only when it can be sent."""

    def next(self, limit_bytes: int) -> bytes | End | None:
        """Return the next message or the end, or None while there is nothing new. Never waits.

        limit_bytes: what the message should not exceed; a few bytes are always possible.
        """
        ...

    def sent(self, out: Outgoing) -> None:
        """Take note that the last message was handed to the connection, whole.

        An answer that can go the short way from now on says so in `out`.
        """
        ...

    @property
    def more(self) -> bool:
        """Whether `next` may have something at once."""
        ...

    def end(self, error: Exception) -> None:
        """Let `next` return the end that `error` makes."""
        ...

    def leave(self, code: Code) -> None:
        """The caller is gone, with `code`. No effect after the end."""
        ...


class Nothing:
    """No answer yet. A stream may wake its front end while it is being opened."""

    __slots__ = ()
    more = False

    def next(self, limit_bytes: int) -> None:
        return None

    def sent(self, out: Outgoing) -> None:
        pass

    def end(self, error: Exception) -> None:
        pass

    def leave(self, code: Code) -> None:
        pass


NOTHING = Nothing()
