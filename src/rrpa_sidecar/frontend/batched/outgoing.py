"""One answer between where its messages come from and its connection's next write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rrpa_sidecar.frontend.batched.answer import NOTHING, Answer
from rrpa_sidecar.frontend.batched.heads import Head
from rrpa_sidecar.metrics import ModelMetrics
from rrpa_sidecar.stream.stream import StreamReader

if TYPE_CHECKING:
    from h2.stream import H2Stream

    from rrpa_sidecar.frontend.batched.sender import Sender


class Outgoing:
    """One answer on its way out.

    stream: h2's state of its stream, with the window that its peer has left.
    sender: of its connection.
    answer: where its messages come from; NOTHING until its request is whole.
    rest: the part of a message that found no window.
    in_message: some of that message has been sent, so all of it has to be.
    reader: its next token can go the short way, with `head` before it, counted in `counters`.
    word: of its slot in its engine's table, where the short way could not take it.
    last_frame_ns: when its last token was handed to the connection, 0: none was.
    queued: it waits for its turn in the sender.
    gone: its caller is, and its log may be closed.
    """

    __slots__ = (
        "answer",
        "counters",
        "gone",
        "head",
        "in_message",
        "last_frame_ns",
        "queued",
        "reader",
        "rest",
        "sender",
        "stream",
        "stream_id",
        "word",
    )

    head: Head
    counters: ModelMetrics

    def __init__(
        self, stream_id: int, stream: H2Stream, sender: Sender, answer: Answer = NOTHING
    ) -> None:
        self.stream_id = stream_id
        self.stream = stream
        self.sender = sender
        self.answer = answer
        self.rest = b""
        self.in_message = False
        self.reader: StreamReader | None = None
        self.last_frame_ns = 0
        self.word = 0
        self.queued = False
        self.gone = False
