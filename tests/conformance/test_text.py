"""Bytes in, whole characters out (field-bugs.md G1–G6)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from tests.conformance.asking import replay
from tests.conformance.callers import Caller, GrpcCaller, Request
from tests.harness.processes import Stack

FF = b"\xff"
REPLACEMENT = "\ufffd".encode()
# One character of every width, the ends of each range, and those that others trip over.
ALPHABET = (
    "aZ09 \n\r\t\v\f"
    "\0\x7f\x80\x85\u07ffäß\u0800\u2028\u2029\ufeff\ufffd\uffff\ud7ff\ue000한글日本"
    "\U00010000\U0010ffff😀👩‍👩‍👧‍👦🏳️‍🌈e\u0301"
)


def random_text(rng: random.Random, length: int = 40) -> str:
    return "".join(rng.choices(ALPHABET, k=rng.randrange(length)))


def cut(rng: random.Random, raw: bytes) -> list[bytes]:
    """Cut `raw` at random bytes; some tokens are empty."""
    ends = sorted(rng.randrange(len(raw) + 1) for _ in range(rng.randrange(12)))
    starts = [0, *ends]
    return [raw[a:b] for a, b in zip(starts, [*ends, len(raw)], strict=True)]


def splits(raw: bytes) -> Iterator[list[bytes]]:
    """Every way to cut `raw` into tokens: 2^(n-1) of them."""
    for mask in range(1 << (len(raw) - 1)):
        tokens, start = [], 0
        for end in range(1, len(raw) + 1):
            if end == len(raw) or mask >> (end - 1) & 1:
                tokens.append(raw[start:end])
                start = end
        yield tokens


def check(caller: Caller, streams: Sequence[Sequence[bytes]]) -> None:
    """Send all `streams`; each arrives as Python's own decoder would give it."""
    answers = caller.ask_all([replay(tokens) for tokens in streams])
    for tokens, answer in zip(streams, answers, strict=True):
        expected = b"".join(tokens).decode("utf-8", "replace").encode()
        assert (answer.code, answer.complete) == ("OK", True), (answer.code, answer.text, tokens)
        assert answer.data == expected, tokens
        offset = 0
        for frame in answer.frames[:-1]:
            assert frame.data
            frame.data.decode("utf-8")  # no half a character
            assert frame.offset == offset
            offset += len(frame.data)
        if answer.frames:
            assert answer.finish is not None
            assert answer.frames[-1].offset == len(expected)
            assert answer.finish.usage.completion_tokens == len(tokens), tokens
            assert answer.trailers["rrpa-offset"] == [str(len(expected))]


def test_1000_random_texts_cut_at_random_bytes_arrive_equal(
    caller: Caller, seeded: random.Random
) -> None:
    check(caller, [cut(seeded, random_text(seeded).encode()) for _ in range(1000)])


def test_every_split_of_characters_of_2_3_and_4_bytes_arrives_equal(caller: Caller) -> None:
    check(caller, [tokens for text in ("é", "한", "😀", "é한") for tokens in splits(text.encode())])


def test_random_bytes_arrive_as_pythons_decoder_replaces_them(
    caller: Caller, seeded: random.Random
) -> None:
    streams = []
    for _ in range(300):
        raw = bytearray(random_text(seeded).encode())
        for _ in range(seeded.randrange(4)):
            if raw:
                del raw[seeded.randrange(len(raw))]
            raw.insert(seeded.randrange(len(raw) + 1), seeded.randrange(128, 256))
        streams.append(cut(seeded, bytes(raw)))
    check(caller, streams)


def test_known_bad_sequences_arrive_as_pythons_decoder_replaces_them(caller: Caller) -> None:
    bad = [
        FF,
        b"ok\xff\xfeok",
        b"\x80\x80\x80",
        b"\xc0\x80",  # overlong NUL
        b"\xe0\x80\x80",  # overlong
        b"\xed\xa0\x80",  # surrogate
        b"\xf4\x90\x80\x80",  # above U+10FFFF
        b"\xf0\x9f\x98",  # cut off at the end of the answer
        b"\xe2\x82 then",  # cut off by ASCII
        b"\xf0\x9f\xf0\x9f\x98\x80",  # cut off by a good character
        b"\xc3",
    ]
    check(caller, [[raw] for raw in bad])
    check(caller, [[raw[i : i + 1] for i in range(len(raw))] for raw in bad])


def test_bytes_that_only_look_strange_pass_unchanged(caller: Caller) -> None:
    strange = [
        REPLACEMENT,
        b"\0",
        b"x\0y",
        b"x\0",
        "\ufeffbegins with a BOM".encode(),
        "line\u2028line\u2029line\x85line\vline\fline\rline\r\nline\n".encode(),
        b"\0" * 4096,
        b" ",
        b"data: [DONE]\n\n",
    ]
    check(caller, [[raw] for raw in strange])
    check(caller, [[raw[i : i + 1] for i in range(min(len(raw), 300))] for raw in strange])


def test_zero_length_tokens_count_and_end_nothing(caller: Caller) -> None:
    check(
        caller,
        [
            [b"", b"a", b"b"],
            [b"a", b"", b"b"],
            [b"a", b"b", b""],
            [b"a", *[b""] * 500, b"b"],
            [b"\xf0\x9f", b"", b"\x98\x80"],
            [b""] * 3,
        ],
    )


def test_answer_without_a_token_ends_with_one_finish(caller: Caller) -> None:
    check(caller, [[], []])
    answer = caller.ask(replay([], delay_s=0.2))
    assert (answer.code, answer.complete, answer.data) == ("OK", True, b"")
    if answer.frames:
        assert len(answer.frames) == 1
        assert answer.finish is not None
        assert answer.finish.reason


def test_invalid_bytes_harm_no_other_stream(caller: Caller) -> None:
    good = ["Grüße, 世界 😀".encode()[i : i + 1] for i in range(len("Grüße, 世界 😀".encode()))]
    check(caller, [[b"good ", FF, b" answer"] if n % 5 == 0 else good for n in range(21)])


def test_replaced_characters_are_counted(stack: Stack, grpc_caller: GrpcCaller) -> None:
    before = stack.daemon.metric("rrpa_replaced_characters_total")
    check(grpc_caller, [[b"a\xffb\xfe", b"\xf0\x9f"], [REPLACEMENT], [b"fine"]])
    assert stack.daemon.metric("rrpa_replaced_characters_total") - before == 3


def test_only_the_incomplete_tail_of_a_token_waits(grpc_caller: GrpcCaller) -> None:
    call = grpc_caller.stub.CreateStream(
        replay([b"hi \xf0", b"\x9f\x98\x80"], between_s=30), timeout=20
    )
    assert next(call).data == b"hi "
    call.cancel()


def test_bytes_that_can_never_become_a_character_do_not_wait(grpc_caller: GrpcCaller) -> None:
    call = grpc_caller.stub.CreateStream(replay([b"\xff", b"later"], between_s=30), timeout=20)
    assert next(call).data == REPLACEMENT
    call.cancel()


def test_a_lone_surrogate_cannot_be_put_into_a_request() -> None:
    with pytest.raises((UnicodeEncodeError, ValueError)):
        Request(model="test", prompt="half \ud83d").SerializeToString()


def test_a_big_answer_in_one_token_arrives_whole(caller: Caller, seeded: random.Random) -> None:
    check(caller, [[random_text(seeded, 20000).encode() * 8]])
