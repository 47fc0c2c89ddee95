"""A stream: data in whole characters, then exactly one end."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rrpa_sidecar.errors import CorruptLog, EngineFailed, EngineLost, EngineStatus
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.stream import stream
from rrpa_sidecar.stream.events import Data, Failed, Finished
from rrpa_sidecar.stream.progress import Progress
from rrpa_sidecar.stream.stream import OneEvent, Silence, StreamReader
from rrpa_sidecar.stream.text import whole_characters
from tests.stream.fakes import FakeLog


@pytest.fixture
def log() -> FakeLog:
    return FakeLog()


@pytest.fixture
def reader(log) -> StreamReader:
    return StreamReader(Progress(log))


def finished(offset: int, reason: int = 1) -> Finished:
    return Finished(offset, reason, None, 0, 0, 0)


def test_nothing_committed_is_no_event_and_no_read(log, reader):
    assert reader.poll() is None
    assert log.reads == []


def test_data_comes_with_the_bytes_delivered_before_it(log, reader):
    log.raw = b"one"
    assert reader.poll() == Data(0, b"one")
    assert reader.poll() is None
    log.raw += b"two"
    assert reader.poll() == Data(3, b"two")


def test_offsets_count_delivered_bytes_where_bytes_were_replaced(log, reader):
    log.raw = b"a\xff"
    assert reader.poll() == Data(0, "a\ufffd".encode())
    log.raw += b"b"
    assert reader.poll() == Data(4, b"b")
    assert reader.replaced == 1


def test_half_a_character_gives_no_event_and_is_not_read_again_until_more_comes(log, reader):
    log.raw = b"\xf0\x9f"
    assert reader.poll() is None
    assert reader.poll() is None
    assert len(log.reads) == 1
    assert reader.caught_up, "nobody asks again for half a character"
    log.raw += b"\x98\x80"
    assert reader.poll() == Data(0, "😀".encode())


def test_half_a_character_at_the_end_is_replaced_before_the_end(log, reader):
    log.raw = b"ok\xe2\x82"
    assert reader.poll() == Data(0, b"ok")
    log.end = End(reason=1)
    assert reader.poll() == Data(2, "\ufffd".encode())
    assert reader.poll() == finished(5)
    assert reader.poll() is None


def test_end_without_a_byte_is_one_finish(log, reader):
    log.end = End(reason=2, prompt_tokens=3, completion_tokens=1, cached_tokens=2)
    assert reader.poll() == Finished(0, 2, None, 3, 1, 2)
    assert reader.poll() is None
    assert log.reads == []


def test_stop_sequence_is_text(log, reader):
    log.end = End(reason=3, stop_sequence="ÄNDE".encode())
    assert reader.poll() == Finished(0, 3, "ÄNDE", 0, 0, 0)


def test_an_end_with_a_code_is_the_engines_own_status_after_all_data(log, reader):
    log.raw, log.end = b"abc", End(code=3, reason=5, text="too long")
    assert reader.poll() == Data(0, b"abc")
    event = reader.poll()
    assert isinstance(event, Failed)
    assert (event.offset, type(event.error), str(event.error)) == (3, EngineStatus, "too long")
    assert event.error.code == 3


def test_reason_error_without_a_code_is_never_a_finish(log, reader):
    log.end = End(reason=5)
    event = reader.poll()
    assert isinstance(event, Failed)
    assert isinstance(event.error, EngineFailed)


def test_lost_stream_delivers_what_was_committed_then_fails_with_the_offset(log, reader):
    log.raw = b"abc\xc3"
    reader._progress.lose("engine e was lost")
    log.raw += b"\xa4 written after we gave up"
    assert reader.poll() == Data(0, "abc\ufffd".encode())
    event = reader.poll()
    assert isinstance(event, Failed)
    assert isinstance(event.error, EngineLost)
    assert event.offset == 6
    assert str(event.error).startswith("engine e was lost after 6 bytes")
    assert reader.poll() is None


def test_end_written_just_before_the_loss_wins(log, reader):
    log.end = End(reason=1)
    reader._progress.lose("engine e was lost")
    assert reader.poll() == finished(0)


@pytest.mark.parametrize("where", ["corrupt_progress", "corrupt_read"])
def test_corrupt_log_fails_once_with_what_was_delivered(log, reader, where):
    log.raw = b"good"
    reader.poll()
    log.raw += b"bad"
    setattr(log, where, "cursor went back")
    event = reader.poll()
    assert isinstance(event, Failed)
    assert (event.offset, str(event.error)) == (4, "cursor went back")
    assert reader._progress.broken is event.error
    assert reader.poll() is None


def test_limit_cuts_between_characters_and_loses_nothing(log, reader):
    log.raw = ("é" * 10).encode()
    log.end = End(reason=1)
    assert reader.poll(limit_bytes=5) == Data(0, "éé".encode())
    assert reader._progress.final
    assert reader.poll(limit_bytes=6) == Data(4, "ééé".encode())
    assert reader.poll() == Data(10, ("é" * 5).encode())
    assert reader.poll() == finished(20)


@pytest.mark.parametrize("limit", [0, 1, 3, 4])
def test_smallest_limits_still_take_one_character(log, reader, limit):
    log.raw = "😀😀".encode()
    assert reader.poll(limit_bytes=limit) == Data(0, "😀".encode())


def test_header_is_not_looked_at_again_after_the_end(log, reader):
    log.raw, log.end = b"abcdefgh", End(reason=1)
    while not isinstance(reader.poll(limit_bytes=4), Finished):
        pass
    assert log.looks == 1


def test_refresh_finds_the_end_without_delivering(log, reader):
    log.raw, log.end = b"abc", End(reason=1)
    reader._progress.refresh()
    assert reader._progress.final
    assert reader.offset == 0
    assert reader.poll() == Data(0, b"abc")


def trusted(log: FakeLog, text: bytes = b"one") -> StreamReader:
    """A reader that has polled `text` and trusts the table since."""
    reader = StreamReader(Progress(log))
    log.raw = text
    assert reader.poll() is not None
    assert reader.trust(log.word())
    return reader


def test_a_trusted_word_gives_the_new_bytes_and_the_header_is_not_looked_at(log):
    reader = trusted(log)
    looks = log.looks
    log.raw += b"two"
    assert reader.promised(log.word(), 100) == b"two"
    assert (reader.offset, log.looks) == (6, looks)
    assert reader.promised(log.word(), 100) == b"", "no byte twice"
    log.raw += b"three"
    assert reader.poll() == Data(6, b"three"), "both ways may take turns"
    assert reader.caught_up


def test_nothing_is_trusted_before_the_header_has_agreed(log, reader):
    log.raw = b"one"
    assert reader.promised(log.word(), 100) == b""
    assert not reader.trust(log.word())
    reader.poll()
    log.raw += b"two"
    assert not reader.trust(log.word()), "ahead of the header as it was read"
    reader.poll()
    assert not reader.trust(0)
    assert reader.trust(log.word())


def test_every_turn_can_be_trusted_and_few_are_remembered(log, reader):
    log.raw = b"one"
    reader.poll()
    for turn in range(layout.WORD_TURNS):
        assert reader.trust(log.word(turn))
    log.raw += b"two"
    assert reader.promised(log.word(turn), 100) == b"two"
    assert len(stream._TURNS) <= stream._TURNS_LIMIT + 1


@pytest.mark.parametrize("turn", [0, 2, 65535])
def test_a_word_of_another_log_of_the_slot_promises_nothing(log, turn):
    reader = trusted(log)
    log.raw += b"two"
    assert reader.promised(log.word(turn), 100) == b""
    assert reader.poll() == Data(3, b"two")
    assert reader.trust(log.word(turn))
    log.raw += b"!"
    assert reader.promised(log.word(turn), 100) == b"!"


@pytest.mark.parametrize(("limit", "found"), [(2, b""), (3, b"two")])
def test_a_promise_above_the_limit_is_left_to_poll(log, limit, found):
    reader = trusted(log)
    log.raw += b"two"
    assert reader.promised(log.word(), limit) == found


def test_half_a_character_is_kept_by_either_way(log):
    reader = trusted(log)
    log.raw += "ä".encode()[:1]
    assert reader.promised(log.word(), 100) == b""
    assert reader.poll() is None
    assert reader.promised(log.word(), 100) == b""
    log.raw += "ä".encode()[1:]
    assert reader.promised(log.word(), 100) == "ä".encode()
    log.raw += b"\xff"
    assert reader.promised(log.word(), 100) == "\ufffd".encode()
    assert (reader.offset, reader.replaced) == (8, 1)


def test_a_word_ahead_of_the_file_promises_nothing(log):
    reader = trusted(log)
    word = log.word() + (5 << 1)
    assert reader.promised(word, 100) == b""
    assert reader.poll() is None


def test_a_log_that_cannot_be_read_promises_nothing(log, monkeypatch):
    reader = trusted(log)
    log.raw += b"two"

    def fails(*_: object) -> bytes:
        raise OSError

    monkeypatch.setattr("rrpa_sidecar.stream.stream.pread", fails)
    assert reader.promised(log.word(), 100) == b""
    assert reader.poll() == Data(3, b"two"), "who knows why, or reads it after all"


def test_a_word_ahead_of_the_cursor_is_corruption_as_soon_as_the_header_is_read(log):
    reader = trusted(log)
    os.pwrite(log.fd, b"more", layout.HEADER_BYTES + 3)
    assert reader.promised(log.word() + (4 << 1), 100) == b"more"
    event = reader.poll()
    assert isinstance(event, Failed)
    assert isinstance(event.error, CorruptLog)
    assert event.offset == 7, "what was delivered cannot be taken back"


@pytest.mark.parametrize("size", [1, 27, 28])
def test_a_tail_that_fits_the_word_saves_reading_the_log(log, size):
    reader = trusted(log)
    log.raw += b"x" * size
    os.ftruncate(log.fd, 0)
    assert reader.promised(log.word(), 100, log.tail()) == b"x" * size
    assert reader.offset == 3 + size


def test_a_tail_shorter_than_the_news_is_not_used(log):
    reader = trusted(log)
    log.raw += bytes(range(1, 30))
    assert reader.promised(log.word(), 100, log.tail()) == bytes(range(1, 30))
    log.raw += b"!" * 29
    os.ftruncate(log.fd, 0)
    assert reader.promised(log.word(), 100, log.tail()) == b""


def test_half_a_character_before_a_tail_belongs_to_it(log):
    reader = trusted(log)
    log.raw += "ä".encode()[:1]
    assert reader.promised(log.word(), 100, log.tail()) == b""
    log.raw += "ä".encode()[1:]
    assert reader.promised(log.word(), 100, log.tail()) == "ä".encode()


@given(st.integers(0, 32 * 8 - 1), st.binary(min_size=1, max_size=28))
def test_a_tail_with_one_wrong_bit_is_not_believed(bit, token):
    log = FakeLog()
    reader = trusted(log)
    log.raw += token
    wrong = int.from_bytes(log.tail(), "big") ^ 1 << bit
    data = reader.promised(log.word(), 100, wrong.to_bytes(32, "big"))
    # A NUL may come from a hole; that is for `poll` to find out.
    assert data == (b"" if 0 in token else whole_characters(token, False).data)


def test_the_tail_of_a_later_word_or_of_none_is_not_believed(log):
    reader = trusted(log)
    log.raw += b"two"
    word = log.word()
    log.raw += b"six"
    later = log.tail()
    assert reader.promised(word, 100, later) == b"two"
    log.raw += b"ten"
    assert reader.promised(log.word(), 100, bytes(32)) == b"sixten"


@pytest.mark.parametrize("how", ["end", "lose", "corrupt"])
def test_after_the_end_was_seen_nothing_is_promised(log, how):
    reader = trusted(log)
    log.raw += b"two"
    if how == "end":
        log.end = End(reason=1)
        reader._progress.refresh()
    elif how == "lose":
        reader._progress.lose("engine e was lost")
    else:
        log.corrupt_progress = "broken"
        reader._progress.refresh()
    assert reader.promised(log.word(), 100) == b""
    assert not reader.trust(log.word())


@given(
    st.lists(st.binary(max_size=12), max_size=20),
    st.lists(st.integers(1, 20), min_size=1),
    st.randoms(),
)
def test_any_tokens_polled_at_any_moment_equal_one_decode(tokens, limits, random):
    log = FakeLog()
    reader = StreamReader(Progress(log))
    got = b""
    for number, token in enumerate(tokens):
        log.raw += token
        while random.random() < 0.5:
            if random.random() < 0.5:
                found = reader.promised(log.word(), limits[number % len(limits)])
                found.decode()
                got += found
                assert reader.offset == len(got)
                continue
            event = reader.poll(limits[number % len(limits)])
            reader.trust(log.word())
            if isinstance(event, Data):
                assert event.offset == len(got)
                assert event.data
                event.data.decode()
                got += event.data
    log.end = End(reason=1)
    while isinstance(event := reader.poll(limits[0]), Data):
        got += event.data
    assert event == finished(len(got))
    assert got == b"".join(tokens).decode("utf-8", "replace").encode()


def test_stand_ins_for_a_log_say_nothing_or_one_failure():
    assert Silence().poll() is None
    failure = Failed(0, EngineLost("gone"))
    source = OneEvent(failure)
    assert source.poll() is failure
    assert source.poll() is None
