"""Which answer says what, and when: windows, turns and cuts, over h2's real state."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived

from rrpa_sidecar.frontend.batched.answers import End
from rrpa_sidecar.frontend.batched.sender import BATCH_BYTES, Outgoing, Sender
from rrpa_sidecar.status import Code

CALL = [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "x")]


class Bytes:
    """An answer over a text that grows: as a log, it gives what the limit allows."""

    def __init__(self, text: bytes = b"") -> None:
        self.text = text
        self.at = 0
        self.limits: list[int] = []
        self.sents = 0
        self.over: End | None = None

    def next(self, limit_bytes: int) -> bytes | End | None:
        self.limits.append(limit_bytes)
        if self.at == len(self.text):
            return self.over
        piece = self.text[self.at : self.at + limit_bytes - 5]
        self.at += len(piece)
        return piece

    def sent(self) -> None:
        self.sents += 1

    @property
    def more(self) -> bool:
        return self.at < len(self.text) or self.over is not None

    def end(self, error: Exception) -> None:
        self.over = End(Code.CANCELLED, str(error))
        self.text = self.text[: self.at]

    def leave(self, code: Code) -> None:
        pass


class Pair:
    """A server's sender and the client that it sends to."""

    def __init__(self, calls: int, window: int = 65535) -> None:
        self.client = H2Connection()
        self.client.initiate_connection()
        self.client.update_settings({4: window})
        self.server = H2Connection(H2Configuration(client_side=False))
        self.server.initiate_connection()
        for at in range(calls):
            self.client.send_headers(2 * at + 1, CALL)
        self.exchange()
        self.ended: list[int] = []
        self.sender = Sender(self.server, self.end)
        self.outs = [Outgoing(i, self.server.streams[i], Bytes()) for i in self.server.streams]
        for out in self.outs:
            self.server.send_headers(out.stream_id, [(":status", "200")])
        self.got: dict[int, bytes] = {out.stream_id: b"" for out in self.outs}
        self.order: deque[int] = deque()
        self.batch()

    def exchange(self) -> None:
        self.server.receive_data(self.client.data_to_send())
        self.client.receive_data(self.server.data_to_send())
        self.server.receive_data(self.client.data_to_send())

    def end(self, out: Outgoing, end: End) -> None:
        self.ended.append(out.stream_id)
        out.gone = True

    def batch(self) -> int:
        """Carry one batch to the client; return how many bytes of bodies it had."""
        size = 0
        for event in self.client.receive_data(b"".join(self.sender.batch())):
            if isinstance(event, DataReceived):
                self.got[event.stream_id] += event.data
                self.order.append(event.stream_id)
                size += len(event.data)
        return size

    def grow(self, out: Outgoing, text: bytes) -> None:
        answer: Any = out.answer
        answer.text += text
        self.sender.mark(out)

    def open_window(self, amount: int, stream_id: int | None = None) -> None:
        self.client.increment_flow_control_window(amount, stream_id)
        self.server.receive_data(self.client.data_to_send())
        for out in self.outs:
            self.sender.mark(out)


def bodies(raw: bytes) -> bytes:
    """Return the messages of a body, joined."""
    found = b""
    while raw:
        length = int.from_bytes(raw[1:5], "big")
        found += raw[5 : 5 + length]
        raw = raw[5 + length :]
    return found


def test_a_step_of_many_answers_is_one_batch_of_one_frame_each() -> None:
    pair = Pair(50)
    for at, out in enumerate(pair.outs):
        pair.grow(out, b"token %d" % at)
    pair.batch()
    assert [bodies(pair.got[out.stream_id]) for out in pair.outs] == [
        b"token %d" % at for at in range(50)
    ]
    assert len(pair.order) == 50
    assert pair.batch() == 0
    assert not pair.sender.has_work


def test_an_answer_without_window_waits_and_leaves_in_one_larger_frame() -> None:
    pair = Pair(2, window=40)
    slow, other = pair.outs
    for _ in range(100):
        pair.grow(slow, b"0123456789")
        pair.grow(other, b"")
        pair.batch()
    assert len(pair.got[slow.stream_id]) == 40
    assert len(slow.rest) < 40, "no more than the rest of one message is held"
    answer: Any = slow.answer
    asked = len(answer.limits)
    pair.batch()
    assert len(answer.limits) == asked, "it is not asked while it cannot send"
    pair.order.clear()
    pair.open_window(5000, slow.stream_id)
    while pair.batch():
        pass
    assert bodies(pair.got[slow.stream_id]) == b"0123456789" * 100
    assert len(pair.order) <= 3


@pytest.mark.parametrize("window", [1, 2, 7, 29])
def test_tiny_windows_let_everything_through_in_the_end(window: int) -> None:
    pair = Pair(1, window=window)
    (out,) = pair.outs
    pair.grow(out, b"some words of an answer " * 5)
    for _ in range(1000):
        pair.batch()
        pair.open_window(window, out.stream_id)
    assert bodies(pair.got[out.stream_id]) == b"some words of an answer " * 5
    assert out.answer.sents > 0  # type: ignore[attr-defined]


def test_a_window_of_0_given_by_settings_afterwards_makes_it_negative_and_harms_nobody() -> None:
    pair = Pair(2, window=1000)
    first, second = pair.outs
    pair.grow(first, b"x" * 600)
    pair.batch()
    pair.client.update_settings({4: 0})
    pair.server.receive_data(pair.client.data_to_send())
    assert first.stream.outbound_flow_control_window < 0
    for out in pair.outs:
        pair.grow(out, b"y" * 10)
    assert pair.batch() == 0
    pair.client.update_settings({4: 1000})
    pair.server.receive_data(pair.client.data_to_send())
    for out in pair.outs:
        pair.sender.mark(out)
    pair.batch()
    assert bodies(pair.got[first.stream_id]) == b"x" * 600 + b"y" * 10
    assert bodies(pair.got[second.stream_id]) == b"y" * 10


def test_the_connections_window_is_shared_in_turns_and_nobody_starves() -> None:
    pair = Pair(4)
    for out in pair.outs:
        pair.grow(out, b"z" * 200_000)
    pair.batch()
    assert sum(map(len, pair.got.values())) == 65535
    sizes = [len(raw) for raw in pair.got.values()]
    assert min(sizes) > 15_000, sizes
    for _ in range(60):
        pair.client.increment_flow_control_window(16_384)
        for out in pair.outs:
            pair.client.increment_flow_control_window(16_384, out.stream_id)
        pair.server.receive_data(pair.client.data_to_send())
        for out in pair.outs:
            pair.sender.mark(out)
        pair.batch()
    assert [bodies(raw) for raw in pair.got.values()] == [b"z" * 200_000] * 4


def test_a_batch_is_bounded_and_the_rest_is_the_next() -> None:
    pair = Pair(20, window=2**20)
    pair.client.increment_flow_control_window(2**24)
    pair.server.receive_data(pair.client.data_to_send())
    for out in pair.outs:
        pair.grow(out, b"w" * 100_000)
    size = pair.batch()
    assert BATCH_BYTES <= size <= BATCH_BYTES + 16_384
    assert pair.sender.has_work
    assert max(map(len, pair.got.values())) <= 16_384, "none had a second turn yet"
    pair.batch()
    assert min(map(len, pair.got.values())) > 0, "each had its turn"
    while pair.sender.has_work:
        pair.batch()
    assert all(bodies(raw) == b"w" * 100_000 for raw in pair.got.values())


def test_an_end_needs_no_window_but_never_cuts_a_message_in_half() -> None:
    pair = Pair(2, window=20)
    whole, cut = pair.outs
    pair.grow(cut, b"longer than the window is")
    pair.batch()
    assert not pair.sender.finish(cut, RuntimeError("late"))
    assert pair.sender.finish(whole, RuntimeError("late"))
    assert pair.ended == [whole.stream_id]
    pair.open_window(100, cut.stream_id)
    pair.batch()
    assert bodies(pair.got[cut.stream_id]) == b"longer than the window is"[:23], "one message"
    assert pair.ended == [whole.stream_id, cut.stream_id]


def test_an_answer_that_is_gone_is_asked_nothing() -> None:
    pair = Pair(1)
    (out,) = pair.outs
    pair.grow(out, b"x")
    out.gone = True
    assert pair.batch() == 0
    pair.sender.mark(out)
    assert not pair.sender.has_work
