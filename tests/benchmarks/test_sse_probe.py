"""The reader that decides whether a peer streams: what it takes, and what it refuses."""

from __future__ import annotations

import pytest

from benchmarks.plan import BenchmarkFailed
from benchmarks.servers import PacedLoad
from benchmarks.servers.peers.chat import PROBE_TOKENS, expect_answer, tokens
from benchmarks.servers.peers.probe import Answer, Events
from benchmarks.servers.peers.upstream.events import DONE, Chunks

CHUNKS = Chunks("chatcmpl-1", 0, "replay")
BODY = b"".join(
    [
        CHUNKS.role(),
        CHUNKS.token("one "),
        b": a comment\n\n",
        CHUNKS.token("two\n\n"),
        CHUNKS.finish(),
        CHUNKS.usage(2),
        DONE,
    ]
)
PERIOD_S = 0.02


def test_every_cut_of_a_body_gives_the_same_tokens() -> None:
    for at in range(len(BODY) + 1):
        events = Events()
        events.feed(BODY[:at], 1.0)
        events.feed(BODY[at:], 2.0)
        answer = events.end()
        assert answer.tokens == ["one ", "two\n\n"]
        assert answer.done


def test_a_token_has_the_time_at_which_its_last_byte_came() -> None:
    events = Events()
    events.feed(BODY[:-1], 1.0)
    events.feed(BODY[-1:], 2.0)
    assert events.end().arrived_s == [1.0, 1.0]
    events = Events()
    end = BODY.index(b"two") + 5
    events.feed(BODY[:end], 1.0)
    events.feed(BODY[end:], 2.0)
    assert events.end().arrived_s == [1.0, 2.0]


@pytest.mark.parametrize(
    "event",
    [
        b"data: \n\n",
        b"data: {\n\n",
        b"data: []\n\n",
        b'data: {"choices": 1}\n\n',
        b'data: {"error": {"message": "overloaded"}}\n\n',
        b'data: {"choices": [{"delta": "text"}]}\n\n',
        b"date: {}\n\n",
        b"event: x\ndata: {}\n\n",
        DONE + CHUNKS.token("late"),
    ],
)
def test_an_event_that_is_no_chunk_is_refused(event: bytes) -> None:
    with pytest.raises(BenchmarkFailed, match="expected"):
        Events().feed(event, 0.0)


def test_a_body_that_ends_inside_an_event_is_refused() -> None:
    events = Events()
    events.feed(BODY[:-1], 0.0)
    with pytest.raises(BenchmarkFailed, match="ended inside an event"):
        events.end()


def answer(texts: list[str], start: int = 0) -> Answer:
    """PROBE_TOKENS of `texts` in turn, one each PERIOD_S."""
    given = [texts[(start + at) % len(texts)] for at in range(PROBE_TOKENS)]
    return Answer(given, [at * PERIOD_S for at in range(PROBE_TOKENS)], done=True)


TEXTS = tokens(PacedLoad(1, 50.0, b"word "))


def test_the_texts_are_the_load_s_token_in_all_its_rotations() -> None:
    assert TEXTS == ["word ", "ord w", "rd wo", "d wor", " word"]


def test_a_whole_answer_is_right_from_whichever_text_it_begins() -> None:
    for start in range(len(TEXTS)):
        expect_answer("peer", answer(TEXTS, start), TEXTS, PERIOD_S)


def test_one_token_lost_repeated_or_joined_is_noticed() -> None:
    for at in range(1, PROBE_TOKENS):
        lost = answer(TEXTS)
        del lost.tokens[at], lost.arrived_s[at]
        repeated = answer(TEXTS)
        repeated.tokens.insert(at, repeated.tokens[at])
        joined = answer(TEXTS)
        joined.tokens[at - 1] += joined.tokens.pop(at)
        for wrong in (lost, repeated, joined):
            with pytest.raises(BenchmarkFailed, match="expected 40 tokens"):
                expect_answer("peer", wrong, TEXTS, PERIOD_S)


def test_an_answer_without_its_end_is_noticed() -> None:
    cut = answer(TEXTS)
    cut.done = False
    with pytest.raises(BenchmarkFailed, match=r"no \[DONE\]"):
        expect_answer("peer", cut, TEXTS, PERIOD_S)


def test_tokens_that_come_in_twos_are_buffering_and_a_late_one_is_not() -> None:
    late = answer(TEXTS)
    late.arrived_s[7] = late.arrived_s[8]
    expect_answer("peer", late, TEXTS, PERIOD_S)
    twos = answer(TEXTS)
    twos.arrived_s = [at // 2 * 2 * PERIOD_S for at in range(PROBE_TOKENS)]
    with pytest.raises(BenchmarkFailed, match="it buffers"):
        expect_answer("peer", twos, TEXTS, PERIOD_S)
    whole = answer(TEXTS)
    whole.arrived_s = [1.0] * PROBE_TOKENS
    with pytest.raises(BenchmarkFailed, match="found 0 of 39 gaps"):
        expect_answer("peer", whole, TEXTS, PERIOD_S)
