"""A reader that goes on at any byte it may have: nothing is missing, nothing comes twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rrpa_sidecar.errors import CorruptLog, OffsetOutOfRange
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.stream.events import Data, Failed, Finished
from rrpa_sidecar.stream.progress import Progress
from rrpa_sidecar.stream.seek import CHUNK_BYTES, Seeker
from rrpa_sidecar.stream.stream import StreamReader
from tests.stream.fakes import FakeLog

ALL = 1 << 40
TEXTS = {
    "1 byte": b"plain text",
    "2 bytes": "äöü ß".encode(),
    "3 bytes": "€ ท 語".encode(),
    "4 bytes": "😀a😀".encode(),
    "all sizes": "aä€😀".encode() * 3,
    "replaced": b"a\xff\xfeb\xc3(\xe2\x82\xf0\x9f\x98!",
    "surrogates": b"x\xed\xa0\x80y\xed\xbf",
    "genuine U+FFFD": "a\ufffdb".encode() + b"\xff",
    "nothing": b"",
}


def resumed(log: FakeLog, offset: int, limit: int = ALL) -> StreamReader:
    """Return the reader that goes on at `offset`, found `limit` raw bytes at a time."""
    seeker = Seeker(Progress(log), offset)
    while (reader := seeker.advance(limit)) is None:
        assert seeker.poll() is None
    return reader


def rest_of(reader: StreamReader, offset: int) -> tuple[bytes, object]:
    """Return all that comes, checked for its offsets, and the last event."""
    got = b""
    while isinstance(event := reader.poll(), Data):
        assert event.offset == offset + len(got)
        assert event.data
        got += event.data
    assert reader.unread_bytes == 0
    return got, event


@pytest.mark.parametrize("raw", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("ended", [False, True])
def test_every_offset_of_a_text_gets_exactly_the_rest(raw, ended):
    log = FakeLog()
    log.raw = raw
    log.end = End(reason=1) if ended else None
    first = StreamReader(Progress(log))
    whole, last = rest_of(first, 0)
    assert whole == raw.decode("utf-8", "replace").encode() or not ended
    for offset in range(len(whole) + 1):
        got, event = rest_of(resumed(log, offset), offset)
        assert got == whole[offset:], f"offset {offset}"
        assert event == last
    with pytest.raises(OffsetOutOfRange, match=rf"has {len(whole)} bytes .* {len(whole) + 1};"):
        resumed(log, len(whole) + 1)


def test_an_offset_inside_a_character_begins_with_the_rest_of_its_bytes():
    log = FakeLog()
    log.raw = "a😀b".encode()
    reader = resumed(log, 2)
    assert not reader.caught_up
    assert (reader.offset - reader.unread_bytes, reader.unread_bytes) == (2, 3)
    assert reader.poll() == Data(2, "😀".encode()[1:])
    assert reader.poll() == Data(5, b"b")


def test_bytes_replaced_before_the_offset_are_not_counted_again():
    log = FakeLog()
    log.raw = b"\xff\xff\xff"
    reader = resumed(log, 4)
    assert rest_of(reader, 4) == ("\ufffd".encode()[1:] + "\ufffd".encode(), None)
    assert reader.replaced == 1


def test_half_a_character_at_the_end_is_waited_for_and_is_no_byte_yet():
    log = FakeLog()
    log.raw = b"ok\xe2\x82"
    reader = resumed(log, 2)
    assert reader.poll() is None
    with pytest.raises(OffsetOutOfRange):
        resumed(log, 3)
    log.raw += b"\xac!"
    assert reader.poll() == Data(2, "€!".encode())


def test_half_a_character_of_a_lost_log_is_three_bytes_of_the_answer():
    log = FakeLog()
    log.raw = b"ok\xe2\x82"
    progress = Progress(log)
    progress.lose("engine e was lost")
    for offset, rest in ((2, b"\xef\xbf\xbd"), (4, b"\xbd"), (5, b"")):
        reader = Seeker(progress, offset).advance(ALL)
        got, event = rest_of(reader, offset)
        assert got == rest
        assert event.offset == 5
        assert "after 5 bytes" in str(event.error)
    with pytest.raises(OffsetOutOfRange):
        Seeker(progress, 6).advance(ALL)


def test_at_the_very_end_only_the_end_comes():
    log = FakeLog()
    log.raw, log.end = b"all", End(reason=1)
    assert resumed(log, 3).poll() == Finished(3, 1, None, 0, 0, 0)


def test_no_turn_reads_more_than_its_limit_allows_and_a_chunk():
    log = FakeLog()
    log.raw = "aä€😀".encode() * CHUNK_BYTES
    seeker = Seeker(Progress(log), len(log.raw) - 1)
    turns = 0
    reader = None
    while reader is None:
        log.reads.clear()
        reader = seeker.advance(CHUNK_BYTES)
        assert len(log.reads) <= 2
        assert all(limit <= CHUNK_BYTES for _, limit in log.reads)
        turns += 1
    assert turns >= 5
    assert reader.poll() == Data(len(log.raw) - 1, log.raw[-1:])


def test_a_log_that_grows_meanwhile_is_read_to_where_it_is_then():
    log = FakeLog()
    log.raw = b"x" * 100
    seeker = Seeker(Progress(log), 150)
    log.raw += b"y" * 100
    reader = seeker.advance(ALL)
    assert rest_of(reader, 150) == (b"y" * 50, None)


@pytest.mark.parametrize("where", ["corrupt_progress", "corrupt_read"])
def test_a_corrupt_log_fails_the_reader_on_its_way(where):
    log = FakeLog()
    log.raw = b"good"
    setattr(log, where, "cursor went back")
    progress = Progress(log)
    event = Seeker(progress, 2).advance(ALL).poll()
    assert isinstance(event, Failed)
    assert isinstance(event.error, CorruptLog)
    assert event.offset == 2
    assert progress.broken is event.error


def test_a_found_place_can_be_trusted_like_any_other():
    log = FakeLog()
    log.raw = "ab€".encode()
    reader = resumed(log, 4)
    assert not reader.trust(log.word()), "the rest of its character comes first"
    reader.poll()
    assert reader.trust(log.word())
    log.raw += b"!"
    assert reader.promised(log.word(), 100, log.tail()) == b"!"
    assert reader.offset == 6


@given(st.lists(st.binary(max_size=9), max_size=12), st.data())
def test_any_bytes_cut_at_any_offset_are_whole_again(tokens, data):
    log = FakeLog()
    log.raw = b"".join(tokens)
    if data.draw(st.booleans()):
        log.end = End(reason=1)
    whole, _ = rest_of(StreamReader(Progress(log)), 0)
    offset = data.draw(st.integers(0, len(whole)))
    reader = resumed(log, offset, data.draw(st.integers(1, 64)))
    more = data.draw(st.binary(max_size=5)) if log.end is None else b""
    log.raw += more
    log.end = End(reason=1)
    got, last = rest_of(reader, offset)
    assert whole[:offset] + got == log.raw.decode("utf-8", "replace").encode()
    assert isinstance(last, Finished)


# --- Several readers of one log -----------------------------------------------------------


def test_readers_of_one_log_have_places_of_their_own_and_one_end():
    log = FakeLog()
    progress = Progress(log)
    one, two = StreamReader(progress), StreamReader(progress)
    log.raw = b"abc"
    assert one.poll() == Data(0, b"abc")
    log.raw += b"def"
    assert two.poll(4) == Data(0, b"abcd")
    assert not one.caught_up, "the other has read the header"
    assert one.poll() == Data(3, b"def")
    log.end = End(reason=1)
    assert one.poll() == Finished(6, 1, None, 0, 0, 0)
    looks = log.looks
    assert rest_of(two, 4) == (b"ef", Finished(6, 1, None, 0, 0, 0))
    assert log.looks == looks


def test_only_the_reader_that_came_last_to_it_believes_the_table():
    log = FakeLog()
    progress = Progress(log)
    one, two = StreamReader(progress), StreamReader(progress)
    log.raw = b"abc"
    one.poll()
    two.poll()
    assert one.trust(log.word())
    assert two.trust(log.word())
    log.raw += b"d"
    assert one.promised(log.word(), 100) == b""
    assert two.promised(log.word(), 100) == b"d"
    two.distrust()
    assert progress.truster is None
    assert one.trust(log.word()) is False, "ahead of the header as it was read"


def test_what_one_reader_took_on_the_tables_word_the_header_must_confirm_for_all():
    log = FakeLog()
    progress = Progress(log)
    one, two = StreamReader(progress), StreamReader(progress)
    log.raw = b"abc"
    one.poll()
    assert one.trust(log.word())
    log.raw = b"abcdef"
    assert one.promised(log.word(), 100) == b"def"
    log.raw = b"abc"
    event = two.poll()
    assert isinstance(event, Failed)
    assert isinstance(event.error, CorruptLog)
