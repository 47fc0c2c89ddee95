"""Stop sequences, against the whole text."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rrpa_sidecar.engine.stops import MAX_STOP_BYTES, MAX_STOPS, StopFilter, checked_stops
from rrpa_sidecar.errors import InvalidRequest

TEXTS = st.text(alphabet="abé🚂", max_size=24)
STOPS = st.lists(st.text(alphabet="abé🚂", min_size=1, max_size=5), max_size=4)


def filtered(tokens: list[bytes], stops: list[str]) -> tuple[bytes, str | None]:
    """Run a whole answer through the filter."""
    stop_filter, sent = StopFilter(stops), b""
    for token in tokens:
        data, stop = stop_filter.feed(token)
        sent += data
        if stop is not None:
            return sent, stop
    return sent + stop_filter.flush(), None


def whole_text(text: bytes, stops: list[str]) -> tuple[bytes, str | None]:
    """The rule itself: grow the text byte by byte, and look whether it ends in a stop."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop.encode())]
        if found:
            longest = max(found, key=lambda stop: len(stop.encode()))
            return text[: end - len(longest.encode())], longest
    return text, None


def cut_at(text: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


@given(TEXTS, STOPS, st.lists(st.integers(0, 60), max_size=12))
@example("abab", ["bab", "ab"], [1, 2, 3])
@example("ééé", ["éé"], [1, 3])
def test_any_cut_gives_what_the_whole_text_gives(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    raw = text.encode()
    assert filtered(cut_at(raw, cuts), stops) == whole_text(raw, stops)


@given(TEXTS, STOPS, st.lists(st.integers(0, 60), max_size=12))
def test_nothing_is_held_that_cannot_become_a_stop(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    stop_filter = StopFilter(stops)
    for token in cut_at(text.encode(), cuts):
        if stop_filter.feed(token)[1] is not None:
            return
        held = stop_filter.held
        assert not held or any(stop.encode().startswith(held) for stop in stops)


@pytest.mark.parametrize(
    ("tokens", "sent", "matched"),
    [
        (["DEF", "G", "HI", "J"], "", "DEFGHIJ"),
        (["DEF", "G", "HI", "K"], "DEFGHIK", None),
        (["and DE"], "and DE", None),
    ],
)
def test_stop_over_tokens_is_neither_missed_nor_leaked_nor_swallowed(
    tokens: list[str], sent: str, matched: str | None
) -> None:
    assert filtered([each.encode() for each in tokens], ["DEFGHIJ"]) == (sent.encode(), matched)


def test_stop_of_one_character_is_found_when_cut_inside_it() -> None:
    assert filtered([b"x\xf0\x9f", b"\x9a\x82y"], ["🚂"]) == (b"x", "🚂")


def test_text_before_a_possible_stop_is_sent_at_once() -> None:
    assert StopFilter(["END"]).feed(b"hello E") == (b"hello ", None)


def test_bytes_that_are_no_text_pass() -> None:
    assert filtered([b"\xff\xfe", b"", b"\x00\x80"], ["é"]) == (b"\xff\xfe\x00\x80", None)


def test_empty_stop_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        checked_stops(["a", ""])


def test_number_and_size_of_stops_have_an_edge() -> None:
    assert len(checked_stops(["a"] * MAX_STOPS)) == MAX_STOPS
    with pytest.raises(InvalidRequest, match=str(MAX_STOPS)):
        checked_stops(["a"] * (MAX_STOPS + 1))
    checked_stops(["é" * (MAX_STOP_BYTES // 2)])
    with pytest.raises(InvalidRequest, match=str(MAX_STOP_BYTES)):
        checked_stops(["é" * (MAX_STOP_BYTES // 2) + "a"])
