"""Whole characters: the joined pieces equal Python's own decoding, wherever the cuts fall."""

from __future__ import annotations

import time
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rrpa_sidecar.stream.text import REPLACEMENT, whole_characters


def feed(pieces: list[bytes]) -> tuple[list[bytes], int]:
    """Push `pieces` one by one, as a growing log would; return the frames and the count."""
    frames, held, replaced = [], b"", 0
    for number, piece in enumerate(pieces):
        cut = whole_characters(held + piece, final=number == len(pieces) - 1)
        held = (held + piece)[cut.consumed :]
        assert len(held) <= 3
        frames.append(cut.data)
        replaced += cut.replaced
    assert held == b""
    return frames, replaced


def cut_at(raw: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(places), len(raw)]
    return [raw[a:b] for a, b in pairwise(edges)]


@pytest.mark.parametrize("character", ["é", "한", "😀", "\ufffd", "\u2028", "\ufeff"])
def test_every_split_of_a_character_arrives_whole_and_text_before_it_at_once(character):
    raw = character.encode()
    for count in range(len(raw)):
        for places in combinations(range(1, len(raw)), count):
            pieces = cut_at(raw, list(places))
            pieces[0] = b"hi " + pieces[0]
            frames, replaced = feed([*pieces, b"!"])
            if len(pieces) > 1:
                assert frames[0] == b"hi "
            assert b"".join(frames) == b"hi " + raw + b"!"
            assert replaced == 0
            for frame in frames:
                frame.decode()


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff",
        b"ok\xffok",
        b"\x80",
        b"\xc0\xaf",  # overlong
        b"\xe0\x80\x80",
        b"\xed\xa0\x80",  # surrogate
        b"\xed\xa0\x80\xed\xb0\x80",
        b"\xf4\x90\x80\x80",  # above U+10FFFF
        b"\xf0\x9f\x98",  # ends early
        b"\xf0\x9fx",
        b"\xe2\x82\xff\xac",
        b"\xef\xbf\xbd\xff\xef\xbf\xbd",  # genuine, made, genuine
        b"\x00\x00",
        b"\xef\xbb\xbfbom",
    ],
)
def test_invalid_bytes_become_what_python_makes_of_them_at_every_cut(raw):
    expected = raw.decode("utf-8", "replace").encode()
    made = expected.count(REPLACEMENT) - raw.count(REPLACEMENT)
    for count in range(len(raw)):
        for places in combinations(range(1, len(raw)), count):
            frames, replaced = feed(cut_at(raw, list(places)))
            assert b"".join(frames) == expected
            assert replaced == made


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=12))
def test_random_bytes_at_random_cuts_equal_one_decode(raw, places):
    frames, replaced = feed(cut_at(raw, [p for p in places if p <= len(raw)]))
    expected = raw.decode("utf-8", "replace").encode()
    assert b"".join(frames) == expected
    assert replaced == expected.count(REPLACEMENT) - raw.count(REPLACEMENT)


@given(st.text(max_size=60), st.lists(st.integers(0, 240), max_size=12))
def test_random_text_at_random_cuts_arrives_unchanged(text, places):
    raw = text.encode()
    frames, replaced = feed(cut_at(raw, [p for p in places if p <= len(raw)]))
    assert b"".join(frames) == raw
    assert replaced == 0


@pytest.mark.parametrize("held", [b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\x9f"])
def test_beginning_of_a_possible_character_waits_until_the_end(held):
    assert whole_characters(b"a" + held, final=False) == (b"a", 1, 0)
    assert whole_characters(held, final=False) == (b"", 0, 0)
    assert whole_characters(held, final=True) == (REPLACEMENT, len(held), 1)


@pytest.mark.parametrize(
    ("raw", "made"),
    [(b"\xff", 1), (b"\xc1", 1), (b"\xe0\x80", 2), (b"\xf4\x90", 2), (b"\xed\xa0", 2)],
)
def test_what_can_never_become_a_character_does_not_wait(raw, made):
    assert whole_characters(raw, final=False) == (REPLACEMENT * made, len(raw), made)


def test_empty_is_nothing():
    assert whole_characters(b"", final=False) == (b"", 0, 0)
    assert whole_characters(b"", final=True) == (b"", 0, 0)


def test_time_grows_with_the_length_of_garbage_and_not_with_its_square():
    def cpu_seconds(size: int) -> float:
        raw = b"\xff\xed\xa0\xf0\x9f" * (size // 5)
        best = 9.0
        for _ in range(5):
            began = time.process_time()
            whole_characters(raw, final=False)
            best = min(best, time.process_time() - began)
        return best

    # 16 times as long; quadratic work would take 256 times as much.
    assert cpu_seconds(4 << 20) < 80 * cpu_seconds(256 << 10)
