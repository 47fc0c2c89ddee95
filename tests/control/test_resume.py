"""Clients that come back: to streams that go on without them, that are over, or of other times."""

from __future__ import annotations

import logging
import secrets
from dataclasses import replace

import pytest

from rrpa_sidecar.control.broker import Broker, Labels, Reading
from rrpa_sidecar.control.lifecycle import State
from rrpa_sidecar.control.readers import SEEK_BYTES
from rrpa_sidecar.errors import (
    CapacityExhausted,
    CorruptLog,
    DeadlinePassed,
    Draining,
    EngineLost,
    EngineStatus,
    InvalidRequest,
    OffsetOutOfRange,
    ShmFull,
    StreamNotFound,
)
from rrpa_sidecar.pb.engine_pb2 import OpenStream
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import Space
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.memory import Memory
from rrpa_sidecar.shm.table import Moves
from rrpa_sidecar.shm.writer import LogWriter
from rrpa_sidecar.status import MESSAGE_LIMIT_BYTES
from rrpa_sidecar.stream.events import Data, Finished
from tests.control.engine import (
    CANCELLED,
    STREAM_BYTES,
    Cast,
    assert_at_rest,
    failure,
    read_all,
    streams_in,
)

LABELS = Labels("again", "s")
NAME = "0123456789abcdef" * 2
PAGE = 4096
LITTLE = 1e-9


@pytest.fixture
def later(broker, clock, config) -> None:
    """The sidecar has run for a while: no engine may announce a stream any more."""
    clock.jump_s(config.resume_window_s)


def resume(broker: Broker, stream: Reading | str, offset: int = 0) -> Reading:
    name = stream if isinstance(stream, str) else stream.stream_id
    return broker.resume(name, offset, LABELS)


# --- Coming back to a stream that goes on -------------------------------------------------


def test_client_that_was_cut_off_reads_on_where_it_was(broker, cast, config, clock):
    engine = cast.engine()
    stream = cast.open(resumable=True)
    engine.write(stream, b"one ")
    assert read_all(stream)[0] == b"one "
    stream.leave()
    engine.write(stream, b"two ")
    clock.jump_s(config.resume_window_s - LITTLE)
    broker.sweep()
    again = resume(broker, stream, 4)
    assert (again.resumed, again.start_offset, again.offset) == (True, 4, 4)
    assert (again.stream_id, again.model, again.labels) == (stream.stream_id, "test", LABELS)
    assert again.poll() == Data(4, b"two ")
    engine.write(stream, b"three")
    engine.finish(stream)
    assert read_all(again) == (b"three", Finished(13, 1, None, 0, 0, 0))
    assert again.offset == 13
    assert engine.cancelled == []


def test_stream_that_nobody_comes_back_to_is_stopped_after_the_window_and_not_before(
    broker, cast, config, clock, caplog
):
    caplog.set_level(logging.INFO)
    engine = cast.engine(capacity=1)
    stream = cast.open(resumable=True)
    engine.write(stream, b"one ")
    stream.leave()
    stream.leave()
    clock.jump_s(config.resume_window_s - LITTLE)
    broker.sweep()
    assert engine.cancelled == []
    assert stream.stream_id not in caplog.text
    clock.jump_s(LITTLE)
    broker.sweep()
    broker.sweep()
    assert engine.cancelled == [stream.stream_id]
    said = f"stream {stream.stream_id} is stopped: nobody has read it for --resume-window 10 s"
    assert caplog.messages.count(said) == 1
    assert stream.stream.state is State.STOPPING
    late = resume(broker, stream, 4)
    engine.obey_cancels()
    assert late.poll() == Finished(4, CANCELLED, None, 0, 0, 0)
    assert engine.cancelled == [stream.stream_id]


def test_wish_to_stop_that_is_repeated_makes_no_other_stream_wait_longer(
    broker, cast, config, clock, shm
):
    writer = LogWriter.create(shm, NAME, stream_bytes=STREAM_BYTES, clock=clock)
    broker.cancel_stream(NAME)  # it is live, but its engine is not known
    engine = cast.engine()
    stream = cast.open(resumable=True)
    engine.write(stream, b"one ")
    stream.leave()
    clock.jump_s(config.resume_window_s / 2)
    broker.cancel_stream(NAME)
    clock.jump_s(config.resume_window_s / 2)
    broker.sweep()
    assert engine.cancelled == [stream.stream_id]
    writer.close()


def test_stream_that_had_not_begun_when_it_was_stopped_can_still_be_read(
    broker, cast, config, clock
):
    engine = cast.engine()
    stream = cast.open(resumable=True)
    stream.leave()
    clock.jump_s(config.resume_window_s)
    broker.sweep()
    assert engine.cancelled == [stream.stream_id]
    engine.write(stream, b"the cancel was on its way")
    engine.obey_cancels()
    assert read_all(resume(broker, stream, 4))[0] == b"cancel was on its way"


def test_end_that_nobody_has_read_needs_no_stop_when_the_window_is_over(
    broker, cast, config, clock
):
    engine = cast.engine()
    stream = cast.open(resumable=True)
    engine.write(stream, b"a")
    stream.leave()
    engine.writers[stream.stream_id].finish(End(reason=1))  # and no bell
    broker._readers.sweep(clock.now_ns() + round(config.resume_window_s * 1e9))
    assert engine.cancelled == []
    assert stream.stream.state is State.GONE


def test_stream_that_was_not_asked_to_outlive_its_client_is_aborted_at_once(broker, cast, shm):
    engine = cast.engine()
    stream = cast.open()
    engine.write(stream, b"one ")
    stream.leave()
    assert engine.cancelled == [stream.stream_id]
    with pytest.raises(StreamNotFound):
        resume(broker, stream)
    engine.obey_cancels()
    assert streams_in(shm) == []
    assert_at_rest(broker)


def test_without_a_window_a_stream_is_stopped_at_once_and_its_file_stays(
    config, shm, metrics, clock
):
    broker = Broker(replace(config, resume_window_s=0.0), shm, "/b", metrics, clock)
    cast = Cast(broker, shm, clock)
    engine = cast.engine()
    stream = cast.open(resumable=True)
    engine.write(stream, b"one ")
    stream.leave()
    assert engine.cancelled == [stream.stream_id]
    engine.obey_cancels()
    assert read_all(resume(broker, stream))[1] == Finished(4, CANCELLED, None, 0, 0, 0)
    cast.close()


def test_any_stream_can_have_several_readers_and_the_last_to_leave_decides(broker, cast):
    engine = cast.engine()
    first = cast.open()
    engine.write(first, "aä".encode())
    second, third = resume(broker, first, 1), resume(broker, first, 2)
    assert (second.offset, third.offset) == (1, 2)
    assert read_all(first)[0] == "aä".encode()
    assert read_all(second)[0] == "ä".encode()
    assert read_all(third)[0] == "ä".encode()[1:]
    first.leave()
    second.leave()
    assert engine.cancelled == []
    engine.write(first, b"!")
    assert third.poll() == Data(3, b"!")
    third.leave()
    assert engine.cancelled == [first.stream_id]


def test_all_readers_are_woken_by_a_move_and_each_gets_everything(broker, cast):
    engine = cast.engine()
    first = cast.open()
    engine.write(first, b"a")
    second = resume(broker, first)
    woken: list[str] = []
    first.waker = lambda: woken.append("first")
    second.waker = lambda: woken.append("second")
    engine.write(first, b"b")
    assert woken == ["first", "second"]
    engine.finish(first)
    assert read_all(first) == read_all(second) == (b"ab", Finished(2, 1, None, 0, 0, 0))


class Way:
    """A short way that keeps what it took. Implements ShortWay."""

    def __init__(self) -> None:
        self.taken = b""
        self.readers: dict[object, object] = {}

    def begin_step(self) -> None:
        pass

    def take(self, places: list[object], moves: Moves) -> list[tuple[int, int]]:
        others = []
        for slot, word in moves.pairs:
            reader = self.readers.get(places[slot])
            if reader is None or word & 1:
                others.append((slot, word))
            else:
                self.taken += reader.promised(word, 4096)
        return others

    def end_step(self) -> None:
        pass


def test_the_short_way_is_for_a_stream_with_one_reader(broker, cast):
    engine = cast.engine()
    broker.short_way = way = Way()
    first = cast.open()
    engine.write(first, b"one ")
    first.poll()
    way.readers["place"] = first.follow("place")
    engine.write(first, b"two ")
    assert way.taken == b"two "
    second = resume(broker, first)
    assert first.follow("place") is None
    assert second.follow("place") is None
    engine.write(first, b"three ")
    assert way.taken == b"two ", "both are woken"
    assert read_all(first)[0] == b"three "
    assert read_all(second)[0] == b"one two three "
    second.leave()
    way.readers["place"] = first.follow("place")
    engine.write(first, b"four")
    assert way.taken == b"two four"
    assert first.offset == 18


def test_a_stream_in_the_queue_keeps_its_place_for_the_window(broker, cast, config, clock):
    engine = cast.engine(capacity=1)
    running, waiting, behind = (cast.open(resumable=True) for _ in range(3))
    waiting.leave()
    behind.leave()
    clock.jump_s(config.resume_window_s - LITTLE)
    broker.sweep()
    again = resume(broker, behind)
    clock.jump_s(LITTLE)
    broker.sweep()
    assert broker.queue_length() == 1
    with pytest.raises(StreamNotFound):
        resume(broker, waiting)
    engine.finish(running)
    assert engine.submitted[-1].stream_id == behind.stream_id
    engine.write(again, b"x")
    assert again.poll() == Data(0, b"x")


def test_a_stream_runs_and_ends_without_a_reader_and_its_slot_is_free_at_once(broker, cast):
    engine = cast.engine(capacity=1)
    stream, waiting = cast.open(resumable=True), cast.open()
    stream.leave()
    engine.write(stream, b"all")
    engine.finish(stream)
    assert waiting.stream.state is State.SUBMITTED
    assert read_all(resume(broker, stream)) == (b"all", Finished(3, 1, None, 0, 0, 0))


def test_first_token_and_replacements_are_counted_once_though_two_read(broker, cast, metrics):
    engine = cast.engine()
    first = cast.open()
    engine.write(first, b"a\xff")
    second, third = resume(broker, first), resume(broker, first, 4)
    for reading in (first, second, third):
        read_all(reading)
    meter = metrics.model("test")
    assert sum(meter.engine_first_token_s.counts) == 1
    assert meter.replaced_characters == 2, "each replacement that was delivered"
    assert metrics.totals.streams_resumed == 2


# --- Refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "../x", NAME.upper(), NAME + "0", NAME[1:], "é" * 40])
def test_an_id_that_is_none_is_refused(broker, name):
    for call in (lambda: resume(broker, name), lambda: broker.cancel_stream(name)):
        with pytest.raises(InvalidRequest, match="32 lower-case hex digits") as caught:
            call()
        assert len(str(caught.value).encode()) <= MESSAGE_LIMIT_BYTES


def test_an_offset_beyond_what_the_stream_has_is_refused_with_both_numbers(broker, cast):
    engine = cast.engine()
    stream = cast.open(resumable=True)
    with pytest.raises(OffsetOutOfRange, match=r"has 0 bytes .* offset 1;"):
        resume(broker, stream, 1)
    engine.write(stream, b"abc\xe2\x82")
    with pytest.raises(OffsetOutOfRange, match=r"has 3 bytes .* offset 4;") as caught:
        resume(broker, stream, 4)
    assert len(str(caught.value).encode()) <= MESSAGE_LIMIT_BYTES
    assert len(stream.stream.readings) == 1
    assert resume(broker, stream, 3).poll() is None


def test_a_refused_offset_does_not_end_a_stream_that_waits_for_its_reader(broker, cast):
    engine = cast.engine()
    stream = cast.open(resumable=True)
    engine.write(stream, b"abc")
    stream.leave()
    with pytest.raises(OffsetOutOfRange):
        resume(broker, stream, 4)
    assert engine.cancelled == []
    assert read_all(resume(broker, stream, 2))[0] == b"c"


def test_nobody_resumes_while_the_sidecar_drains(broker, cast):
    cast.engine()
    stream = cast.open(resumable=True)
    broker.drain()
    with pytest.raises(Draining):
        resume(broker, stream)


# --- Long answers -------------------------------------------------------------------------


def test_a_place_far_into_a_long_answer_is_found_in_turns(config, shm, metrics, clock):
    size = layout.HEADER_BYTES + 4 * SEEK_BYTES
    broker = Broker(
        replace(config, stream_bytes=size, shm_bytes=2 * size), shm, "/b", metrics, clock
    )
    cast = Cast(broker, shm, clock)
    engine = cast.engine()
    stream = cast.open()
    writer = LogWriter.create(
        shm, stream.stream_id, stream_bytes=size, table=engine.table, slot=0, clock=clock
    )
    engine.writers[stream.stream_id] = writer
    text = "aé€".encode() * (3 * SEEK_BYTES // 6)
    writer.write(text)
    broker.scan()
    busy: list[bool] = []
    broker.on_busy = lambda: busy.append(broker.seeking)
    far = resume(broker, stream, len(text) - 2)
    other = resume(broker, stream, len(text) + 1)
    gone = resume(broker, stream, len(text))
    assert busy[-1]
    assert (far.poll(), far.offset, far.caught_up) == (None, len(text) - 2, True)
    gone.leave()
    woken: list[str] = []
    far.waker = lambda: woken.append("far")
    turns = 0
    while broker.seeking:
        broker.seek()
        turns += 1
    assert turns == 5, "one turn was there at once, for the first alone"
    assert woken == ["far"]
    assert far.poll() == Data(len(text) - 2, text[-2:])
    assert isinstance(failure(other.poll()), OffsetOutOfRange)
    assert other.offset == len(text) + 1
    late = resume(broker, stream, len(text))
    for reading in (far, other, late, stream):
        reading.leave()
    assert not broker.seeking, "nobody is on the way any more"
    cast.close()


# --- Streams that are over ----------------------------------------------------------------


def finished(cast: Cast, token: bytes = b"all of it") -> Reading:
    """Return a resumable stream that has ended and was left."""
    engine = cast.engines[0] if cast.engines else cast.engine(capacity=20_000)
    stream = cast.open(resumable=True)
    engine.write(stream, token)
    engine.finish(stream)
    read_all(stream)
    stream.leave()
    assert stream.stream.state is State.GONE
    return stream


def test_answer_can_be_read_again_until_the_timeout_and_not_after_it(
    broker, cast, shm, config, clock
):
    stream = finished(cast)
    clock.jump_s(config.shm_timeout_s - LITTLE)
    broker.sweep()
    again = resume(broker, stream, 4)
    assert read_all(again) == (b"of it", Finished(9, 1, None, 0, 0, 0))
    assert again.resumable
    clock.jump_s(config.shm_timeout_s)
    broker.sweep()
    assert len(streams_in(shm)) == 1, "it is being read"
    again.leave()
    clock.jump_s(config.shm_timeout_s - LITTLE)
    broker.sweep()
    assert len(streams_in(shm)) == 1
    clock.jump_s(LITTLE)
    broker.sweep()
    assert streams_in(shm) == []
    with pytest.raises(StreamNotFound):
        resume(broker, stream)
    assert_at_rest(broker)


def test_what_is_kept_costs_its_real_bytes_and_no_descriptor_and_hurries_nobody(
    broker, cast, config, clock
):
    broker.sweep()  # the first look for files of nobody
    stream = finished(cast, b"x" * (PAGE + 1))
    assert broker.shm_used_bytes() == 3 * PAGE  # one of the header, two of data
    assert stream.stream.log.fd == -1
    assert (broker.busy, broker.unsettled, broker.active_streams()) == (False, False, 0)
    assert broker.rest_s == config.shm_timeout_s
    clock.jump_s(1)
    assert broker.rest_s == config.shm_timeout_s - 1
    clock.jump_s(1000)
    assert broker.rest_s == 0
    broker.sweep()
    assert broker.rest_s == config.shm_timeout_s, "to the next look for files of nobody"
    assert broker.shm_used_bytes() == 0


def test_stream_that_waits_for_its_reader_is_not_waited_for_at_the_exit(broker, cast):
    engine = cast.engine()
    stream = cast.open(resumable=True)
    engine.write(stream, b"a")
    assert broker.unsettled
    stream.leave()
    assert broker.busy
    assert not broker.unsettled


def test_new_streams_push_out_what_is_kept_as_soon_as_they_need_its_bytes(broker, cast, shm, later):
    kept = [finished(cast) for _ in range(3)]
    for _ in range(7):
        cast.open()
    used = 7 * STREAM_BYTES + 3 * 2 * PAGE
    assert broker.shm_used_bytes() == used
    cast.open()
    assert broker.active_streams() == 8
    assert broker.shm_used_bytes() == 8 * STREAM_BYTES
    assert streams_in(shm) == []
    with pytest.raises(StreamNotFound):
        resume(broker, kept[2])


def test_no_more_is_pushed_out_than_a_new_stream_needs(config, shm, metrics, clock):
    room = 3 * STREAM_BYTES
    broker = Broker(replace(config, shm_bytes=room), shm, "/b", metrics, clock)
    cast = Cast(broker, shm, clock)
    clock.jump_s(config.resume_window_s)
    old, young, youngest = (finished(cast, b"x" * 60_000) for _ in range(3))
    cast.open()
    assert broker.shm_used_bytes() == 3 * 16 * PAGE + STREAM_BYTES, "all of it fits"
    assert cast.open().stream.state is State.SUBMITTED
    assert broker.shm_used_bytes() == 2 * 16 * PAGE + 2 * STREAM_BYTES
    with pytest.raises(StreamNotFound):
        resume(broker, old)
    for kept in (young, youngest):
        assert read_all(resume(broker, kept))[0] == b"x" * 60_000
    cast.close()


def test_a_file_that_is_read_again_is_not_pushed_out(broker, cast, later):
    first, second = finished(cast), finished(cast)
    reading = resume(broker, first)
    for _ in range(8):
        cast.open()
    assert broker.queue_length() == 1, "the budget is used by what is read"
    assert read_all(reading)[0] == b"all of it"
    assert second.stream_id in broker._kept, "without it there would be no room either"
    reading.leave()
    assert broker.queue_length() == 0
    for stream in (first, second):
        with pytest.raises(StreamNotFound):
            resume(broker, stream)


def test_a_full_file_system_pushes_out_what_is_kept_and_each_waiting_stream_runs_once(
    broker, cast, shm, monkeypatch
):
    kept = finished(cast)
    engine = cast.engines[0]
    engine.engine._free.clear()
    engine.engine._free.append(0)
    running, waiting = cast.open(), cast.open()

    def space() -> Space:
        full = layout.log_name(kept.stream_id) in shm.names()
        return Space(64 << 20, STREAM_BYTES - full)

    monkeypatch.setattr(shm, "space", space)
    engine.finish(running)
    names = [each.stream_id for each in engine.submitted]
    assert names == [kept.stream_id, running.stream_id, waiting.stream_id]
    assert kept.stream_id not in broker._kept


def test_a_new_stream_pushes_out_what_is_kept_when_the_file_system_is_full(
    broker, cast, shm, monkeypatch
):
    kept = [finished(cast), finished(cast)]
    names = [layout.log_name(each.stream_id) for each in kept]
    free = [STREAM_BYTES - 3 * PAGE]
    monkeypatch.setattr(
        shm, "space", lambda: Space(64 << 20, free[0] + 2 * PAGE * (names[0] not in shm.names()))
    )
    with pytest.raises(CapacityExhausted, match="bytes free"):
        cast.open()
    assert streams_in(shm) == [], "each was tried: only the last could have made the room"
    free[0] = STREAM_BYTES
    cast.open()


def test_of_too_many_kept_files_the_oldest_goes(broker, cast, shm, monkeypatch, later):
    monkeypatch.setattr("rrpa_sidecar.control.kept.LIMIT", 3)
    kept = [finished(cast) for _ in range(4)]
    assert len(streams_in(shm)) == 3
    with pytest.raises(StreamNotFound):
        resume(broker, kept[0])
    assert read_all(resume(broker, kept[1]))[0] == b"all of it"


def test_refused_requests_push_out_nobody_s_answer(broker, cast, monkeypatch, later):
    monkeypatch.setattr("rrpa_sidecar.control.kept.LIMIT", 3)
    answer = finished(cast)
    cast.engine("full", capacity=1)
    cast.open("full")
    refused = [cast.open("full", resumable=True, timeout_s=1e-9) for _ in range(4)]
    broker._dispatch.refuse_late(broker._clock.now_ns() + 1)
    for each in refused:
        assert isinstance(failure(each.poll()), DeadlinePassed)
        each.leave()
    assert read_all(resume(broker, answer))[0] == b"all of it"
    with pytest.raises(StreamNotFound):
        resume(broker, refused[0])
    assert isinstance(failure(resume(broker, refused[-1]).poll()), DeadlinePassed)


def test_many_files_that_are_due_at_once_are_removed_some_at_a_time(
    broker, cast, shm, clock, config, monkeypatch, later
):
    monkeypatch.setattr("rrpa_sidecar.control.kept.REMOVED_PER_SWEEP", 3)
    for _ in range(7):
        finished(cast)
    clock.jump_s(config.shm_timeout_s)
    left = []
    while broker.rest_s == 0:
        broker.sweep()
        left.append(len(streams_in(shm)))
    assert left == [4, 1, 0]
    assert_at_rest(broker)


def test_file_that_somebody_else_has_removed_is_not_found_and_costs_nothing(
    broker, cast, shm, later
):
    stream = finished(cast)
    shm.unlink(layout.log_name(stream.stream_id))
    with pytest.raises(StreamNotFound):
        resume(broker, stream)
    assert_at_rest(broker)


@pytest.mark.parametrize("how", ["status", "lost", "corrupt", "rejected", "late"])
def test_a_stream_that_failed_fails_with_the_same_status_again(broker, cast, clock, shm, how):
    engine = cast.engine(capacity=1)
    stream = cast.open(resumable=True)
    kinds = {"lost": EngineLost, "corrupt": CorruptLog, "late": DeadlinePassed}
    if how in ("status", "lost", "corrupt"):
        engine.write(stream, b"half an\xe2")
    if how == "status":
        engine.finish(stream, End(code=13, reason=5, text="CUDA error"))
    elif how == "lost":
        engine.die()
    elif how == "corrupt":
        with open(f"{shm.path}/{layout.log_name(stream.stream_id)}", "r+b") as file:
            file.seek(128)
            file.write(b"\xff" * 32)
        broker.scan()
        broker.sweep()
        engine.writers[stream.stream_id].close()
        broker.sweep()
    elif how == "rejected":
        broker.rejected(engine.engine, stream.stream_id, 3, "prompt is too long")
    else:
        stream = cast.open(resumable=True, timeout_s=1)
        clock.jump_s(1)
        broker.sweep()
    events = [read_all(stream)]
    stream.leave()
    for _ in range(2):
        again = resume(broker, stream)
        events.append(read_all(again))
        again.leave()
    assert isinstance(failure(events[0][1]), kinds.get(how, EngineStatus))
    for data, last in events[1:]:
        assert (type(failure(last)), str(failure(last))) == (
            type(failure(events[0][1])),
            str(failure(events[0][1])),
        )
        assert data == (events[0][0] if how != "corrupt" else b"")


def test_an_engine_that_comes_back_after_clients_were_told_of_its_loss_is_told_to_stop(
    broker, cast, clock, config
):
    engine = cast.engine()
    stream = cast.open(resumable=True)
    engine.write(stream, b"ok\xe2")
    broker.detach(engine.engine, "its connection broke")
    clock.jump_s(config.engine_lost_timeout_s)
    broker.sweep()
    got, last = read_all(stream)
    assert got == "ok\ufffd".encode()
    stream.leave()
    back = engine.again()
    cast.engines.append(back)
    back.attach(OpenStream(stream_id=stream.stream_id, model="test", begun=True))
    assert (back.cancelled, back.adopted) == ([stream.stream_id], {})
    engine.writers[stream.stream_id].write(b"\x82\xac")
    got, again = read_all(resume(broker, stream, 2))
    assert got == "\ufffd".encode()
    assert (again.offset, str(failure(again))) == (5, str(failure(last)))


# --- Streams of other times ---------------------------------------------------------------


def left_behind(shm, name: str, text: bytes, size: int = STREAM_BYTES) -> LogWriter:
    """A log of an engine that this sidecar has never seen."""
    writer = LogWriter.create(shm, name, stream_bytes=size)
    writer.write(text)
    return writer


@pytest.mark.parametrize("size", [STREAM_BYTES, 4 * STREAM_BYTES])
def test_stream_of_an_earlier_sidecar_is_found_by_its_file(broker, shm, clock, config, size):
    writer = left_behind(shm, NAME, b"a\xff", size)
    writer.finish(End(reason=2, completion_tokens=2))
    clock.jump_s(config.resume_window_s)  # at any time
    reading = resume(broker, NAME, 3)
    assert reading.model == ""
    assert read_all(reading) == (b"\xbd", Finished(4, 2, None, 0, 2, 0))
    reading.leave()
    assert broker.shm_used_bytes() == 2 * PAGE
    clock.jump_s(config.shm_timeout_s)
    broker.sweep()
    assert streams_in(shm) == []
    assert_at_rest(broker)


def test_live_stream_of_an_unknown_engine_is_followed_by_the_sweeps(broker, shm):
    writer = left_behind(shm, NAME, b"one ")
    reading = resume(broker, NAME)
    assert reading.stream.state is State.FOUND
    assert reading.poll() == Data(0, b"one ")
    woken: list[int] = []
    reading.waker = lambda: woken.append(1)
    writer.write(b"two")
    assert broker.hurried
    broker.sweep()
    assert woken
    assert reading.poll() == Data(4, b"two")
    writer.finish(End(reason=1))
    broker.sweep()
    assert isinstance(reading.poll(), Finished)
    assert broker.active_streams() == 0


def test_stream_whose_unknown_engine_died_delivers_what_there_is_then_fails(broker, shm):
    writer = left_behind(shm, NAME, b"abc\xc3")
    writer.close()
    got, last = read_all(resume(broker, NAME))
    assert got == "abc\ufffd".encode()
    assert "after 6 bytes" in str(failure(last))


def test_live_file_of_somebody_else_is_left_alone_when_its_reader_leaves(broker, shm, clock):
    writer = left_behind(shm, NAME, b"one ")
    resume(broker, NAME).leave()
    clock.jump_s(1000)
    broker.sweep()
    assert len(streams_in(shm)) == 1
    assert_at_rest(broker)
    writer.close()


def test_a_file_that_is_no_log_is_never_a_stream(broker, shm):
    with open(f"{shm.path}/{layout.log_name(NAME)}", "wb") as file:
        file.write(b"secret" * 20_000)
    with pytest.raises(CorruptLog):
        resume(broker, NAME)
    assert len(streams_in(shm)) == 1
    assert_at_rest(broker)


def test_unknown_stream_is_waited_for_shortly_after_the_start_and_then_not_found(
    broker, clock, config
):
    reading = resume(broker, NAME, 7)
    clock.jump_s(config.resume_window_s - LITTLE)
    broker.sweep()
    assert (reading.poll(), reading.offset) == (None, 7)
    clock.jump_s(LITTLE)
    broker.sweep()
    event = reading.poll()
    assert isinstance(failure(event), StreamNotFound)
    assert event.offset == 7
    with pytest.raises(StreamNotFound) as caught:
        resume(broker, secrets.token_hex(16))
    assert len(str(caught.value).encode()) <= MESSAGE_LIMIT_BYTES
    reading.leave()
    assert_at_rest(broker)


@pytest.mark.parametrize("which", ["unknown", "live", "kept"])
def test_no_more_streams_are_resumed_at_once_than_calls_may_be_open(broker, cast, config, which):
    engine, stream = cast.engine(), cast.open(resumable=True)
    engine.write(stream, b"abc")
    if which == "kept":
        engine.finish(stream)
        stream.leave()

    def one_more() -> Reading:
        return resume(broker, secrets.token_hex(16) if which == "unknown" else stream)

    readings = [one_more() for _ in range(config.max_open_calls)]
    for _ in range(2):  # a refusal leaves nothing behind
        with pytest.raises(CapacityExhausted, match=f"^{config.max_open_calls} calls") as caught:
            one_more()
    assert len(str(caught.value).encode()) <= MESSAGE_LIMIT_BYTES
    stream.leave()  # its own call is none of them
    readings.pop().leave()
    one_more()
    with pytest.raises(CapacityExhausted):
        one_more()


def test_one_stream_has_so_few_readers_that_its_tokens_hold_up_nobody_elses(
    broker, cast, monkeypatch
):
    monkeypatch.setattr("rrpa_sidecar.control.readers.READERS_PER_STREAM", 3)
    engine = cast.engine()
    stream, other = cast.open(), cast.open()
    engine.write(stream, b"abc")
    readings = [resume(broker, stream) for _ in range(2)]
    with pytest.raises(CapacityExhausted, match="3 calls read this stream"):
        resume(broker, stream)
    resume(broker, other)
    readings.pop().leave()
    resume(broker, stream)


def test_nobody_resumes_while_the_process_is_short_of_memory(broker, cast):
    class Short(Memory):
        def take(self, size: int) -> None:
            raise ShmFull("1 of 2 bytes")

    cast.engine()
    stream = cast.open(resumable=True)
    broker._gate._memory = Short([])
    with pytest.raises(CapacityExhausted, match="short of memory: 1 of 2 bytes"):
        resume(broker, stream)


# --- Stopping -----------------------------------------------------------------------------


def test_a_stream_is_stopped_at_its_engine_once_and_its_readers_see_why(broker, cast):
    engine = cast.engine()
    stream = cast.open(resumable=True)
    engine.write(stream, b"one ")
    other = resume(broker, stream)
    for _ in range(3):
        broker.cancel_stream(stream.stream_id)
    assert engine.cancelled == [stream.stream_id]
    engine.obey_cancels()
    for reading in (stream, other):
        assert read_all(reading) == (b"one ", Finished(4, CANCELLED, None, 0, 0, 0))
        reading.leave()
    broker.cancel_stream(stream.stream_id)
    assert engine.cancelled == [stream.stream_id]


@pytest.mark.parametrize("where", ["queue", "inbox"])
def test_a_stream_that_has_not_begun_ends_without_a_byte(broker, cast, where):
    engine = cast.engine(capacity=1)
    stream, waiting = cast.open(), cast.open()
    stopped = waiting if where == "queue" else stream
    broker.cancel_stream(stopped.stream_id)
    engine.obey_cancels()
    assert stopped.poll() == Finished(0, CANCELLED, None, 0, 0, 0)
    assert engine.cancelled == ([] if where == "queue" else [stream.stream_id])
    assert broker.queue_length() == 0
    with pytest.raises(OffsetOutOfRange, match="has 0 bytes"):
        resume(broker, stopped, 1)


def test_bytes_written_after_a_stop_that_nobody_has_seen_yet_are_there_for_who_resumes(
    broker, cast
):
    engine = cast.engine()
    stream = cast.open(resumable=True)
    broker.cancel_stream(stream.stream_id)
    engine.begin(stream.stream_id).write(b"ab")  # it has not heard of the stop, and does not ring
    other = resume(broker, stream, 1)
    engine.obey_cancels()
    assert read_all(other) == (b"b", Finished(2, CANCELLED, None, 0, 0, 0))


def test_after_it_was_stopped_its_reader_may_leave_and_nothing_stays(broker, cast, shm):
    engine = cast.engine()
    stream = cast.open()
    engine.write(stream, b"a")
    broker.cancel_stream(stream.stream_id)
    stream.leave()
    assert engine.cancelled == [stream.stream_id]
    engine.obey_cancels()
    assert streams_in(shm) == []
    assert_at_rest(broker)


def test_to_stop_what_is_over_changes_nothing_and_what_is_unknown_is_not_found(broker, cast, shm):
    stream = finished(cast)
    rest_s = broker.rest_s
    broker.cancel_stream(stream.stream_id)
    assert broker.rest_s == rest_s
    left_behind(shm, NAME, b"a").finish(End(reason=1))
    broker.cancel_stream(NAME)
    assert not broker.busy
    with pytest.raises(StreamNotFound):
        broker.cancel_stream(secrets.token_hex(16))
    assert not broker.busy


# --- Clients that leave in every state ----------------------------------------------------


@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize("state", [s for s in State if s not in (State.LEAVING, State.GONE)])
def test_leaving_in_any_state_leaves_nothing_behind_in_the_end(
    broker, cast, shm, clock, state, resumable
):
    engine = cast.engine(capacity=1)
    blocker = cast.open() if state is State.QUEUED else None
    if state is State.AWAITED:
        stream = resume(broker, NAME)
    elif state is State.FOUND:
        writer = left_behind(shm, NAME, b"a")
        stream = resume(broker, NAME)
    else:
        stream = cast.open(resumable=resumable)
    if state not in (State.QUEUED, State.AWAITED, State.FOUND, State.SUBMITTED):
        engine.write(stream, b"a")
    if state is State.STOPPING:
        broker.cancel_stream(stream.stream_id)
    elif state is State.ENDED:
        engine.finish(stream)
        broker.sweep()
    elif state is State.LOSING:
        broker.detach(engine.engine, "its connection broke")
    elif state is State.CORRUPT:
        with open(f"{shm.path}/{layout.log_name(stream.stream_id)}", "r+b") as file:
            file.seek(128)
            file.write(b"\xff" * 32)
        broker.sweep()
    assert stream.stream.state is state
    other = resume(broker, stream.stream_id)
    stream.leave()
    assert stream.stream.state is state, "the other one is still there"
    other.leave()
    if state is State.FOUND:
        writer.close()
        shm.unlink(layout.log_name(NAME))
    engine.tidy()
    broker.detach(engine.engine, "the test ends")
    if blocker is not None:
        blocker.leave()
    for _ in range(3):
        clock.jump_s(60)
        broker.sweep()
    assert stream.stream.state is State.GONE
    assert shm.names() == []
    assert len(broker._kept) == 0
    assert_at_rest(broker)
