"""What an answer says of itself when it ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rrpa_sidecar.clock import SystemClock
from rrpa_sidecar.control.broker import Labels
from rrpa_sidecar.errors import CapacityExhausted, Draining, EngineLost
from rrpa_sidecar.frontend import metadata
from rrpa_sidecar.frontend.batched.answer import End
from rrpa_sidecar.frontend.batched.answers import QUESTIONS_LIMIT, ReflectionAnswer, WatchAnswer
from rrpa_sidecar.frontend.batched.heads import stream_head
from rrpa_sidecar.frontend.batched.stream_answer import StreamAnswer
from rrpa_sidecar.frontend.call import Call
from rrpa_sidecar.frontend.frames import StreamFrames
from rrpa_sidecar.frontend.health import Health, Watch
from rrpa_sidecar.metrics import Metrics
from rrpa_sidecar.status import Code
from tests.frontend.fakes import FakeStream


@pytest.mark.parametrize(("unsent", "offset"), [(b"", "11"), (b"lost", "11")])
def test_the_offset_of_an_end_counts_the_short_way_and_nothing_that_was_not_sent(
    unsent: bytes, offset: str
) -> None:
    stream = FakeStream(Labels("r", "s"))
    call = Call(Metrics(), SystemClock(), 10)
    call.stream, call.labels = stream, stream.labels  # type: ignore[assignment]
    answer = StreamAnswer(call, stream, StreamFrames(), stream_head)  # type: ignore[arg-type]
    stream.offset = 11  # the short way took them, and asked nobody
    if unsent:
        stream.data(unsent)
        assert isinstance(answer.next(100), bytes)
    answer.end(RuntimeError("cut"))
    end = answer.next(100)
    assert isinstance(end, End)
    assert dict(end.metadata)[metadata.OFFSET] == offset


@pytest.mark.parametrize(("whole", "told"), [(True, "18 True"), (False, "11 True")])
def test_an_ending_counts_a_message_that_will_be_sent_whole_and_no_other(
    whole: bool, told: str
) -> None:
    stream = FakeStream(Labels("r", "s", resumable=True), start_offset=7, resumed=True, offset=11)
    call = Call(Metrics(), SystemClock(), 10)
    answer = StreamAnswer(call, stream, StreamFrames(), stream_head)  # type: ignore[arg-type]
    stream.data(b"unsent.")
    assert isinstance(answer.next(100), bytes)
    ended = answer.ended_by(
        lambda offset, resumable: Draining(f"{offset} {resumable}"), whole=whole
    )
    assert str(ended) == told


class StandingClock:
    now = 10**12

    def now_ns(self) -> int:
        return self.now


def test_the_gap_before_a_frame_counts_from_the_last_one_by_either_way() -> None:
    stream, clock, metrics = FakeStream(Labels("r", "s")), StandingClock(), Metrics()
    call = Call(metrics, clock, 10)
    call.labels = stream.labels
    call.accepted(stream)  # type: ignore[arg-type]
    answer = StreamAnswer(call, stream, StreamFrames(), stream_head)  # type: ignore[arg-type]
    out: Any = SimpleNamespace(last_frame_ns=0, word=7)
    words: list[int] = []
    stream.follow = lambda place, word=0: words.append(word)  # type: ignore[method-assign]

    def send() -> None:
        stream.data(b"token")
        assert isinstance(answer.next(100), bytes)
        answer.sent(out)

    send()
    gaps = call.counters.inter_token_s
    assert (sum(gaps.counts), out.last_frame_ns) == (0, clock.now)
    clock.now += 3_000_000
    out.last_frame_ns = clock.now  # a token went the short way
    clock.now += 4_000_000
    send()
    assert (sum(gaps.counts), out.last_frame_ns) == (1, clock.now)
    assert gaps.total_s == pytest.approx(0.004)
    answer.sent(out)  # of nothing new
    assert (call.counters.frames, sum(gaps.counts)) == (2, 1)
    assert words == [7, 7], "the table's word as the short way has met it"


def test_the_first_error_is_the_one_that_a_caller_is_told() -> None:
    stream, call = FakeStream(Labels("r", "s")), Call(Metrics(), SystemClock(), 10)
    answer = StreamAnswer(call, stream, StreamFrames(), stream_head)  # type: ignore[arg-type]
    answer.end(Draining("the first"))
    answer.end(EngineLost("the second"))
    end = answer.next(100)
    assert isinstance(end, End)
    assert "the first" in end.text


def test_a_watch_that_is_left_is_told_nothing_more() -> None:
    health = Health()
    watch = WatchAnswer(health, Watch(health, b""), lambda: None)
    assert len(health.watchers) == 1
    watch.leave(Code.CANCELLED)
    assert not health.watchers


def test_so_many_questions_may_wait_and_no_more() -> None:
    answer = ReflectionAnswer()
    for _ in range(QUESTIONS_LIMIT):
        answer.ask(b"")
    with pytest.raises(CapacityExhausted):
        answer.ask(b"")
