"""Judges frames by their first nine bytes, before anybody acts on them. Pure.

Three things are decided here: whether a peer sends too much of something, whether a frame is too
long (h2 collects it whole before it says so), and how much of what has arrived is one turn's work.
A read of 256 KB may hold 17,000 SETTINGS frames; with 10,000 streams open h2 took 14 s for them,
in one call, before it told anybody (h2 4.4, 2 cores of 2.x GHz).

Source: RFC 9113, 4.1 and 6; CVE-2023-44487, CVE-2024-27316.
"""

from __future__ import annotations

from collections.abc import Callable

from h2.errors import ErrorCodes

from rrpa_sidecar.frontend.batched.budget import FULL_BYTES, Budget
from rrpa_sidecar.frontend.batched.state import FRAME_BYTES, HEADERS_HARD_LIMIT_BYTES
from rrpa_sidecar.frontend.batched.wire import (
    ACK,
    CONTINUATION,
    DATA,
    END_STREAM,
    HEAD_BYTES,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
)

TURN_COST = 2_000
"""What one connection may cost in one turn: some 2 ms, then others have theirs."""

COST = {HEADERS: 150, DATA: 100, RST_STREAM: 50, CONTINUATION: 20}
OTHER_COST = 10
"""About µs, with all that follows: a request is opened, a stream is left."""

FIELD_BYTES = frozenset((HEADERS, CONTINUATION))
"""Frames whose every byte may be a header field: 1 µs a byte. One of an index alone takes 2.5."""

STREAMS_PER_COST, STREAMS_PER_NOISE = 10, 1000
"""SETTINGS may touch every stream: 0.1 µs each."""

QUIET = frozenset((DATA, HEADERS, CONTINUATION, RST_STREAM, WINDOW_UPDATE))
"""Frames that are no noise by themselves; the others are SETTINGS, PING, PRIORITY and unknown."""


class Breach(Exception):
    """The connection has to end."""

    def __init__(self, code: ErrorCodes, text: str) -> None:
        super().__init__(text)
        self.code = code


def too_much(what: str) -> Breach:
    """Return the end of a peer that has used up what it may waste."""
    return Breach(ErrorCodes.ENHANCE_YOUR_CALM, f"too many {what}")


class Gate:
    """The frames of one connection, one after the other, wherever reads cut them."""

    __slots__ = ("_budget", "_fields_bytes", "_head", "_open_calls", "_preface_left", "_skip")

    def __init__(self, budget: Budget, open_calls: Callable[[], int]) -> None:
        self._budget = budget
        self._open_calls = open_calls
        self._preface_left = PREFACE
        self._skip = 0
        self._head = b""
        self._fields_bytes = 0
        """Bytes of the header block that is arriving."""

    def turn(self, data: bytes, at: int, now_s: float) -> int:
        """Take `data` from `at` on, which continues what came before; return where to stop.

        Whatever is before that may be acted on now, and the rest in another turn.

        Raises:
          Breach: no HTTP/2, a frame that is too long, or too many.
        """
        if self._preface_left:
            at = self._greet(data, at)
        cost = 0
        while cost < TURN_COST:
            if self._skip >= len(data) - at:
                self._skip -= len(data) - at
                return len(data)
            at += self._skip
            self._skip = 0
            head = self._head + data[at : at + HEAD_BYTES - len(self._head)]
            at += len(head) - len(self._head)
            if len(head) < HEAD_BYTES:
                self._head = head
                return len(data)
            self._head = b""
            self._skip = int.from_bytes(head[:3], "big")
            if self._skip > FRAME_BYTES:
                raise Breach(ErrorCodes.FRAME_SIZE_ERROR, f"a frame of {self._skip} bytes")
            cost += self._judge(head[3], head[4], self._skip, now_s)
        if self._skip >= len(data) - at:
            self._skip -= len(data) - at
            return len(data)
        at += self._skip
        self._skip = 0
        return at

    def _greet(self, data: bytes, at: int) -> int:
        left = self._preface_left
        found = data[at : at + len(left)]
        if not left.startswith(found):
            raise Breach(ErrorCodes.PROTOCOL_ERROR, "it does not begin as HTTP/2 does")
        self._preface_left = left[len(found) :]
        return at + len(found)

    def _judge(self, kind: int, flags: int, size: int, now_s: float) -> int:
        """Return what a frame will cost."""
        budget = self._budget
        cost = COST.get(kind, OTHER_COST)
        full = kind == DATA and size >= FULL_BYTES
        if not full and not budget.frames.spend(now_s):
            raise too_much("frames")
        if kind in FIELD_BYTES:
            self._fields_bytes = size + (self._fields_bytes if kind == CONTINUATION else 0)
            if self._fields_bytes > HEADERS_HARD_LIMIT_BYTES:
                raise too_much("bytes of headers")
            return cost + size
        if kind == WINDOW_UPDATE:
            if not budget.updates.spend(now_s):
                raise too_much("window updates")
        elif kind == DATA:
            if not size and not flags & END_STREAM and not budget.noise.spend(now_s):
                raise too_much("empty DATA frames")
        elif kind not in QUIET:
            noise = 1
            if kind == SETTINGS:
                if size and flags & ACK:
                    raise Breach(ErrorCodes.FRAME_SIZE_ERROR, "an ACK of SETTINGS with bytes")
                cost += self._open_calls() // STREAMS_PER_COST
                noise += self._open_calls() // STREAMS_PER_NOISE
            if not budget.noise.spend(now_s, noise):
                raise too_much(f"frames of type {kind}")
        return cost
