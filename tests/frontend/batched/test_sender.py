"""Which answer says what, and when: windows, turns and cuts, over h2's real state."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived
from h2.settings import SettingCodes
from hypothesis import given
from hypothesis import strategies as st

from rrpa_sidecar.frontend.batched.answer import MESSAGE_OVERHEAD_BYTES, End
from rrpa_sidecar.frontend.batched.heads import stream_head
from rrpa_sidecar.frontend.batched.sender import (
    BATCH_BYTES,
    Outgoing,
    Sender,
)
from rrpa_sidecar.frontend.batched.step import SHORT_BYTES, SHORT_WINDOW_BYTES, Step
from rrpa_sidecar.frontend.frames import StreamFrames
from rrpa_sidecar.metrics import BUCKETS_S, Metrics, ModelMetrics
from rrpa_sidecar.pb import rrpa_pb2 as pb
from rrpa_sidecar.shm.table import Moves
from rrpa_sidecar.status import Code
from rrpa_sidecar.stream.events import Data
from rrpa_sidecar.stream.progress import Progress
from rrpa_sidecar.stream.stream import StreamReader
from rrpa_sidecar.stream.text import whole_characters
from tests.stream.fakes import FakeLog

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

    def sent(self, out: Outgoing) -> None:
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
        self.outs = [Outgoing(i, s, self.sender, Bytes()) for i, s in self.server.streams.items()]
        for out in self.outs:
            self.server.send_headers(out.stream_id, [(":status", "200")])
        self.got: dict[int, bytes] = {out.stream_id: b"" for out in self.outs}
        self.order: deque[int] = deque()
        self.batch()

    def shrink_window(self, left: int, out: Outgoing | None = None) -> None:
        """Let so much be left, as both sides count it: of a stream, or of the connection."""
        if out is not None:
            out.stream.outbound_flow_control_window = left
            manager = self.client.streams[out.stream_id]._inbound_window_manager
        else:
            self.server.outbound_flow_control_window = left
            manager = self.client._inbound_flow_control_window_manager
        manager.current_window_size = left

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
        self.check_windows()
        return size

    def check_windows(self) -> None:
        """Both sides count the same windows: what one loses in each frame is lost for ever."""
        assert self.server.outbound_flow_control_window == self.client.inbound_flow_control_window
        for out in self.outs:
            there = self.client.streams[out.stream_id].inbound_flow_control_window
            assert out.stream.outbound_flow_control_window == there

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
    assert not pair.sender.has_work, "there is something to say, and no window"
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


def test_an_answer_that_the_connections_window_cut_goes_on_by_itself_when_that_opens() -> None:
    pair = Pair(1, window=2**20)
    (out,) = pair.outs
    messages = [b"s" * 100_000]  # in one piece, so that the window cuts it
    out.answer.next = lambda limit: messages.pop() if messages else None  # type: ignore[method-assign]
    pair.sender.mark(out)
    while pair.batch():
        pass
    assert len(pair.got[out.stream_id]) == 65_535
    pair.client.increment_flow_control_window(2**17)
    pair.server.receive_data(pair.client.data_to_send())
    while pair.batch():
        pass
    assert bodies(pair.got[out.stream_id]) == b"s" * 100_000


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
    for _ in range(20 * 16_384 // BATCH_BYTES):
        pair.batch()
    assert min(map(len, pair.got.values())) > 0, "each had its turn"
    while pair.sender.has_work:
        pair.batch()
    assert all(bodies(raw) == b"w" * 100_000 for raw in pair.got.values())


def test_frames_are_as_large_as_the_peer_allows_and_no_larger() -> None:
    pair = Pair(1, window=2**20)
    (out,) = pair.outs
    pair.open_window(2**20)
    pair.client.update_settings({SettingCodes.MAX_FRAME_SIZE: 40_000})
    pair.exchange()
    pair.grow(out, b"v" * 100_000)
    while pair.sender.has_work:
        pair.batch()
    assert bodies(pair.got[out.stream_id]) == b"v" * 100_000
    assert len(pair.order) == 3


@pytest.mark.parametrize("size", [16_379, 16_380, 40_000])
def test_a_message_that_fits_no_frame_goes_out_in_several(size: int) -> None:
    pair = Pair(1, window=2**20)
    (out,) = pair.outs
    messages = [b"u" * size]  # one that is there already is not cut for anybody
    out.answer.next = lambda limit: messages.pop() if messages else None  # type: ignore[method-assign]
    pair.sender.mark(out)
    while pair.sender.has_work:
        pair.batch()
    assert bodies(pair.got[out.stream_id]) == b"u" * size
    assert len(pair.order) == -(-(size + 5) // 16_384)


def test_the_rest_of_a_message_is_not_kept_for_a_caller_that_is_gone() -> None:
    pair = Pair(1, window=20)
    (out,) = pair.outs
    pair.grow(out, b"longer than the window is")
    pair.batch()
    assert out.rest
    pair.sender.drop(out)
    assert not out.rest


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


class StandingClock:
    now = 10**12

    def now_ns(self) -> int:
        return self.now


class Way:
    """An answer over a real log's file that goes either way, as a stream's does."""

    def __init__(self, counters: ModelMetrics) -> None:
        self.log = FakeLog()
        self.reader = StreamReader(Progress(self.log))
        self.counters = counters
        self.asked = 0
        self.ended = False

    def next(self, limit_bytes: int) -> bytes | None:
        self.asked += 1
        event = self.reader.poll(limit_bytes - MESSAGE_OVERHEAD_BYTES)
        return StreamFrames().data(event) if isinstance(event, Data) else None

    def sent(self, out: Outgoing) -> None:
        out.head, out.counters, out.last_frame_ns = stream_head, self.counters, 1
        out.reader = self.reader if self.reader.trust(self.log.word()) else None

    @property
    def more(self) -> bool:
        return not self.reader.caught_up


class Steps(Pair):
    """Answers over logs, moved as the broker's scan moves them."""

    def __init__(self, calls: int, window: int = 2**20) -> None:
        super().__init__(calls, window)
        self.counters = Metrics().model("")
        self.ways = [Way(self.counters) for _ in self.outs]
        self.room = BATCH_BYTES
        self.woken: list[int] = []
        self.places: list[Outgoing | None] = []
        self.clock = StandingClock()
        self.step = Step([self], self.clock)  # type: ignore[list-item]
        for out, way in zip(self.outs, self.ways, strict=True):
            out.answer = way  # type: ignore[assignment]
        self.open_window(2**20)

    def begin_step(self) -> None:
        self.sender.begin_step(self.room)

    def scan(self, tokens: list[bytes], tails: bool = False, first: int = 0) -> None:
        """One step of the engine, and the scan that follows it.

        first: the slot of the first answer.
        """
        pairs, records = [], b""
        for slot, (way, token) in enumerate(zip(self.ways, tokens, strict=True), first):
            way.log.raw += token
            records += way.log.tail()
            if token:
                pairs.append((slot, way.log.word() | way.ended))
        self.begin_step()
        places = self.places or [out if out.reader else None for out in self.outs]
        places = [None] * first + places
        moves = Moves(first, iter(pairs), records if tails else b"")
        self.woken = [slot - first for slot, _ in self.step.take(places, moves)]
        for at in self.woken:
            self.sender.mark(self.outs[at])

    def texts(self) -> list[bytes]:
        found = []
        for raw in self.got.values():
            text = b""
            while len(raw) >= 5 and len(raw) >= (size := 5 + int.from_bytes(raw[1:5], "big")):
                message = pb.CreateStreamResponse.FromString(raw[5:size])
                assert message.offset == len(text)
                text, raw = text + message.data, raw[size:]
            found.append(text)
        return found


def test_after_the_first_frame_a_token_is_one_frame_and_nobody_is_asked_for_it() -> None:
    step = Steps(20)
    for turn in range(50):
        step.scan([b"%d-%d " % (at, turn) for at in range(20)])
        assert step.sender.has_work
        step.batch()
        assert not step.sender.has_work
    assert step.texts() == [
        b"".join(b"%d-%d " % (at, turn) for turn in range(50)) for at in range(20)
    ]
    assert [way.asked for way in step.ways] == [1] * 20
    assert len(step.order) == step.sender.frames == 50 * 20
    assert step.counters.frames == 49 * 20, "the first ones are counted by their call"
    assert step.counters.delivered_bytes == sum(
        len(text) - len(b"%d-0 " % at) for at, text in enumerate(step.texts())
    )
    assert sum(step.counters.inter_token_s.counts) == 49 * 20


@pytest.mark.parametrize("left", [SHORT_WINDOW_BYTES - 1, SHORT_WINDOW_BYTES])
def test_a_token_goes_the_short_way_only_into_a_window_that_surely_takes_it(left: int) -> None:
    step = Steps(1)
    step.scan([b"first"])
    step.batch()
    (out,) = step.outs
    step.shrink_window(left, out)
    step.scan([b"\xff" * SHORT_BYTES])  # three times as long, once replaced
    while step.batch():
        pass
    assert (step.ways[0].asked == 1) is (left == SHORT_WINDOW_BYTES)
    assert out.stream.outbound_flow_control_window >= 0
    step.open_window(2**20, out.stream_id)
    while step.batch():
        pass
    assert step.texts() == [b"first" + "\ufffd".encode() * SHORT_BYTES]


def test_a_token_that_counts_on_new_settings_follows_their_acknowledgement() -> None:
    """gRPC's core raises its windows when it has measured the path; the scan may come at once."""
    step = Steps(2, window=100)
    step.scan([b"first", b"first"])
    step.batch()
    step.client.update_settings({4: 2**20})
    step.server.receive_data(step.client.data_to_send())
    step.scan([b"x" * 2000, b"y" * 2000])
    assert [way.asked for way in step.ways] == [1, 1], "both went the short way"
    step.batch()  # the client takes its new windows for valid when it reads the ACK
    assert step.texts() == [b"first" + b"x" * 2000, b"first" + b"y" * 2000]


def test_a_token_with_which_its_answer_ends_wakes_its_call() -> None:
    step = Steps(2)
    step.scan([b"first", b"first"])
    step.batch()
    step.ways[0].ended = True
    step.scan([b" last", b" next"])
    assert step.woken == [0]
    step.batch()
    assert step.texts() == [b"first last", b"first next"]


@pytest.mark.parametrize("first", [0, 1, 128])
def test_the_tail_that_a_token_is_taken_from_is_that_of_its_own_slot(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Steps(3)
    step.scan([b"a", b"b", b"c"], first=first)
    step.batch()
    monkeypatch.setattr("rrpa_sidecar.stream.stream.pread", None)  # nothing is read
    step.scan([b" one", b" two", b" three"], tails=True, first=first)
    step.batch()
    assert step.texts() == [b"a one", b"b two", b"c three"]
    assert [way.asked for way in step.ways] == [1] * 3


@pytest.mark.parametrize("how", ["dropped", "ended"])
def test_an_answer_that_is_over_goes_no_way_any_more(how: str) -> None:
    step = Steps(2)
    step.scan([b"first", b"first"])
    step.batch()
    over = step.outs[0]
    step.places = [*step.outs]  # the broker may not know yet
    if how == "dropped":
        step.sender.drop(over)
    else:
        over.answer.end = lambda error: None  # type: ignore[method-assign]
        over.answer.next = lambda limit: End(Code.CANCELLED)  # type: ignore[method-assign]
        assert step.sender.finish(over, RuntimeError("late"))
    step.scan([b" next", b" next"])
    step.batch()
    assert step.texts() == [b"first", b"first next"]


def test_frames_and_gaps_are_counted_for_their_own_model_and_by_their_own_time() -> None:
    step = Steps(5)
    first, second = Metrics().model(""), Metrics().model("")
    step.scan([b"first"] * 5)
    step.batch()
    gaps_s = (0.004, 3.0, 3.0, 3.0, 0.004)
    for out, gap_s, counters in zip(
        step.outs, gaps_s, (first, first, second, second, first), strict=True
    ):
        out.last_frame_ns, out.counters = step.clock.now - int(gap_s * 1e9), counters
    step.scan([b"1", b"22", b"333", b"4444", b"55555"])
    assert [out.last_frame_ns for out in step.outs] == [step.clock.now] * 5
    for counters, frames, size, found in (
        (first, 3, 8, {0.005: 2, 5.0: 1}),
        (second, 2, 7, {5.0: 2}),
    ):
        assert (counters.frames, counters.delivered_bytes) == (frames, size)
        counts = dict(zip(BUCKETS_S, counters.inter_token_s.counts, strict=False))
        assert {bound: count for bound, count in counts.items() if count} == found
    assert first.inter_token_s.total_s == pytest.approx(3.008)
    assert second.inter_token_s.total_s == pytest.approx(6.0)


@pytest.mark.parametrize("room", [-1, 0, 1])
def test_a_transport_without_room_gets_nothing_the_short_way(room: int) -> None:
    step = Steps(2)
    step.scan([b"first", b"first"])
    step.batch()
    step.room = room
    step.scan([b" next", b" next"])
    # The first that finds room is taken whole, and uses it up.
    assert step.sender.credit <= 0
    assert len(step.sender._parts) == (3 if room > 0 else 1)
    while step.batch():
        pass
    assert step.texts() == [b"first next"] * 2


def test_a_token_that_found_no_room_leaves_before_the_backlogs_of_others() -> None:
    step = Steps(4)
    step.scan([b"first"] * 4)
    step.batch()
    step.room = 0
    for way in step.ways[:3]:
        way.log.raw += b"x" * 40_000
    for out in step.outs[:3]:
        step.sender.mark(out)
    step.scan([b"", b"", b"", b" next"])
    step.order.clear()
    step.batch()
    assert step.order[0] == step.outs[3].stream_id
    while step.batch():
        pass
    assert step.texts() == [b"first" + b"x" * 40_000] * 3 + [b"first next"]


@pytest.mark.parametrize("left", [SHORT_WINDOW_BYTES, SHORT_WINDOW_BYTES + 1])
def test_tokens_go_the_short_way_only_while_the_connections_window_surely_takes_them(
    left: int,
) -> None:
    step = Steps(2)
    step.scan([b"first", b"first"])
    step.batch()
    step.shrink_window(left)
    step.scan([b"", b"\xff" * SHORT_BYTES])  # three times as long, once replaced
    assert (len(step.sender._parts) == 3) is (left > SHORT_WINDOW_BYTES)
    while step.batch():
        assert step.server.outbound_flow_control_window >= 0
    step.open_window(2**20)
    while step.batch():
        pass
    assert step.texts()[1] == b"first" + "\ufffd".encode() * SHORT_BYTES


@given(st.data())
def test_any_tokens_in_any_steps_through_any_windows_arrive_once_and_in_order(data: Any) -> None:
    step = Steps(3, window=data.draw(st.sampled_from([10, 100, 20_000, 2**20])))
    token = st.one_of(st.binary(max_size=8), st.integers(4000, 5000).map(bytes))
    wanted = [b""] * 3
    for _ in range(data.draw(st.integers(1, 12))):
        tokens = [data.draw(token) for _ in range(3)]
        wanted = [text + token for text, token in zip(wanted, tokens, strict=True)]
        step.scan(tokens, data.draw(st.booleans()))
        if data.draw(st.booleans()):
            step.batch()
        if data.draw(st.booleans()):
            stream_id = data.draw(st.sampled_from([1, 3, 5]))
            step.open_window(data.draw(st.integers(1, 30_000)), stream_id)
    for _ in range(10_000):
        if not step.batch() and step.texts() == [_whole(text) for text in wanted]:
            break
        for out in step.outs:
            step.open_window(1000, out.stream_id)
    assert step.texts() == [_whole(text) for text in wanted]


def _whole(text: bytes) -> bytes:
    return whole_characters(text, False).data
