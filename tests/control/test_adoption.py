"""Streams that outlive an attachment: their engine announces them, and they go on here."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from rrpa_sidecar.control.adoption import UNBORN_PER_CALL
from rrpa_sidecar.control.broker import Broker, Labels, Reading
from rrpa_sidecar.control.engines import STREAMS_PER_SLOT
from rrpa_sidecar.errors import EngineLost, InvalidRequest
from rrpa_sidecar.metrics import Metrics
from rrpa_sidecar.pb.engine_pb2 import OpenStream
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.stream.events import Finished
from tests.control.engine import (
    STREAM_BYTES,
    FakeEngine,
    assert_at_rest,
    failure,
    read_all,
    streams_in,
)
from tests.harness.limits import too_many_open_files

LABELS = Labels("later", "s")


def announced(stream_id: str, *, begun: bool = True, **changes: Any) -> OpenStream:
    fields = {"stream_id": stream_id, "model": "test", "begun": begun, "request_id": "mine"}
    return OpenStream(**{**fields, **changes})


@pytest.fixture
def successor(config, shm, metrics, clock) -> Broker:
    """The sidecar that comes after `broker` was killed: the old one is not asked any more."""
    return Broker(config, shm, "/tmp/bell", metrics, clock)


@pytest.fixture
def survivor(cast, successor) -> Any:
    """Returns an engine with streams of a sidecar that was killed, not attached again yet."""

    def made(*answers: bytes, capacity: int = 2, model: str = "test") -> FakeEngine:
        old = cast.engine(model, capacity=max(capacity, len(answers)))
        for answer in answers:
            old.write(cast.open(model), answer)
        old.capacity = capacity
        again = old.again(successor)
        cast.engines.append(again)
        return again

    return made


def ids(engine: FakeEngine) -> list[str]:
    return list(engine.writers)


# --- A new sidecar ------------------------------------------------------------------------


def test_announced_stream_goes_on_in_a_slot_and_its_reader_gets_every_byte_once(
    survivor, successor, metrics, clock
):
    engine = survivor(b"Gr" + "ü".encode()[:1])
    (stream_id,) = ids(engine)
    engine.attach(announced(stream_id))
    assert engine.adopted == {stream_id: 0}
    assert successor.active_streams() == 1
    assert metrics.totals.streams_adopted == 1
    reading = successor.resume(stream_id, 2, LABELS)
    assert read_all(reading) == (b"", None)
    engine.write(reading, "ü".encode()[1:] + b"n")
    assert read_all(reading) == ("ün".encode(), None)
    engine.finish(reading)
    got, last = read_all(reading)
    assert (got, type(last)) == (b"", Finished)
    reading.leave()
    assert engine.cancelled == []
    clock.jump_s(31)
    successor.sweep()
    assert_at_rest(successor)


def test_adopted_stream_moves_the_readers_by_its_word_like_any_other(survivor, successor):
    engine = survivor(b"abc")
    (stream_id,) = ids(engine)
    engine.attach(announced(stream_id))
    reading = successor.resume(stream_id, 0, LABELS)
    assert read_all(reading) == (b"abc", None)
    woken: list[int] = []
    reading.waker = lambda: woken.append(1)
    engine.writers[stream_id].write(b"d")
    assert successor.scan()  # no sweep
    assert woken
    assert read_all(reading) == (b"d", None)
    reading.leave()


def test_adoptions_are_said_before_anything_is_submitted_and_take_their_slots(survivor, successor):
    engine = survivor(b"a", b"b", capacity=3)
    engine.attach(*map(announced, ids(engine)))
    assert sorted(engine.adopted.values()) == [0, 1]
    request = cast_request()
    first = successor.open(request, Labels("new", "s"), None)
    second = successor.open(request, Labels("new", "s"), None)
    assert [each.slot for each in engine.submitted] == [2]
    assert successor.queue_length() == 1
    first.leave()
    second.leave()


def cast_request(model: str = "test") -> bytes:
    from rrpa_sidecar.pb.rrpa_pb2 import CreateStreamRequest

    return CreateStreamRequest(model=model).SerializeToString()


def test_queued_streams_take_no_slot_that_an_announced_one_will_need(survivor, successor, cast):
    """Not even when the first of them is found to be over."""
    full = FakeEngine(successor, cast._directory, cast._clock, ("test",), 1)
    cast.engines.append(full)
    full.attach()
    waiting = [successor.open(cast_request(), Labels("new", "s"), None) for _ in range(4)]
    engine = survivor(b"a", b"b", b"c", capacity=3)
    over, *others = ids(engine)
    engine.finish(type("S", (), {"stream_id": over}))
    engine.attach(*map(announced, (over, *others)))
    assert sorted(engine.adopted.values()) == [0, 1, 2]
    assert len(engine.submitted) == 1
    for each in waiting:
        each.leave()


def test_log_that_cannot_be_opened_now_is_adopted_and_read_later(survivor, successor):
    engine = survivor(b"abc").attach()
    (stream_id,) = ids(engine)
    with too_many_open_files():
        successor.announce(engine.engine, [announced(stream_id)])
    assert (list(engine.adopted), engine.cancelled) == ([stream_id], [])
    reading = successor.resume(stream_id, 1, LABELS)
    successor.sweep()
    assert read_all(reading) == (b"bc", None)
    reading.leave()


@pytest.mark.parametrize("resumable", [False, True])
def test_adopted_stream_that_nobody_comes_for_is_stopped_after_the_window(
    survivor, successor, config, clock, shm, resumable
):
    """The sidecar's death is not the client's leaving, so both kinds get the window."""
    engine = survivor(b"abc")
    (stream_id,) = ids(engine)
    engine.attach(announced(stream_id, resumable=resumable))
    clock.jump_s(config.resume_window_s - 0.001)
    successor.sweep()
    assert engine.cancelled == []
    clock.jump_s(0.001)
    successor.sweep()
    assert engine.cancelled == [stream_id]
    engine.obey_cancels()
    successor.sweep()
    assert successor.active_streams() == 0
    clock.jump_s(config.shm_timeout_s)
    successor.sweep()
    assert streams_in(shm) == []
    assert_at_rest(successor)
    assert engine.cancelled == [stream_id]


def test_stream_that_has_not_begun_waits_in_the_engine_and_begins_in_its_new_slot(
    survivor, successor, cast
):
    engine = survivor()
    waiting = "c" * 32
    engine.attach(announced(waiting, begun=False))
    assert engine.adopted == {waiting: 0}
    reading = successor.resume(waiting, 0, LABELS)
    assert read_all(reading) == (b"", None)
    engine.write(reading, b"first")
    assert read_all(reading) == (b"first", None)
    reading.leave()


def test_stream_that_has_not_begun_may_still_be_rejected(survivor, successor):
    engine = survivor()
    waiting = "c" * 32
    engine.attach(announced(waiting, begun=False))
    reading = successor.resume(waiting, 0, LABELS)
    successor.rejected(engine.engine, waiting, 3, "no")
    assert str(failure(reading.poll())) == "no"
    reading.leave()


def test_reader_that_came_before_the_engine_gets_the_stream_when_it_is_announced(
    survivor, successor
):
    engine = survivor()
    waiting = "c" * 32
    reading = successor.resume(waiting, 0, LABELS)
    woken: list[int] = []
    reading.waker = lambda: woken.append(1)
    engine.attach(announced(waiting, begun=False))
    engine.write(reading, b"first")
    assert woken
    assert read_all(reading) == (b"first", None)
    reading.leave()
    assert engine.cancelled == [waiting]  # somebody came and left: no window, it is not resumable


def test_reader_that_found_the_file_before_the_engine_came_reads_on(survivor, successor, clock):
    engine = survivor(b"abc")
    (stream_id,) = ids(engine)
    reading = successor.resume(stream_id, 1, LABELS)
    assert read_all(reading) == (b"bc", None)
    engine.writers[stream_id].write(b"d")
    successor.sweep()
    assert read_all(reading) == (b"d", None)
    engine.attach(announced(stream_id))
    assert engine.adopted == {stream_id: 0}
    assert successor.active_streams() == 1
    engine.write(reading, b"e")
    assert read_all(reading) == (b"e", None)
    engine.finish(reading)
    assert isinstance(read_all(reading)[1], Finished)
    reading.leave()
    clock.jump_s(31)
    successor.sweep()
    assert_at_rest(successor)


def test_log_of_another_size_than_this_sidecars_is_adopted(survivor, config, shm, metrics, clock):
    config = replace(config, stream_bytes=2 * STREAM_BYTES, shm_bytes=8 * STREAM_BYTES)
    other = Broker(config, shm, "/tmp/bell", metrics, clock)
    engine = survivor(b"abc")
    (stream_id,) = ids(engine)
    engine.broker = other
    engine.attach(announced(stream_id))
    reading = other.resume(stream_id, 0, LABELS)
    assert read_all(reading) == (b"abc", None)
    assert other.shm_used_bytes() == STREAM_BYTES  # what it takes, not what ours would
    reading.leave()


def test_stream_that_ended_before_its_announcement_was_read_is_over_at_once(
    survivor, successor, clock
):
    engine = survivor(b"abc")
    (stream_id,) = ids(engine)
    engine.finish(type("S", (), {"stream_id": stream_id}))
    engine.attach(announced(stream_id, resumable=True))
    assert successor.active_streams() == 0
    reading = successor.resume(stream_id, 0, LABELS)
    got, last = read_all(reading)
    assert (got, type(last)) == (b"abc", Finished)
    reading.leave()
    assert engine.cancelled == []


def test_adopted_log_that_breaks_the_format_fails_alone_and_its_engine_is_told(
    survivor, successor, shm
):
    engine = survivor(b"abc", b"xyz")
    bad, good = ids(engine)
    with open(f"{shm.path}/rrpa_{bad}", "r+b") as file:
        file.seek(144)
        file.write(b"\x07")
    engine.attach(*map(announced, ids(engine)))
    assert engine.cancelled == [bad]
    reading = successor.resume(good, 0, LABELS)
    assert read_all(reading) == (b"xyz", None)
    reading.leave()


def test_client_of_no_resumable_stream_has_the_timeout_too_when_a_sidecar_died(
    survivor, successor, config, clock
):
    """It never said that it would come back, but it was not it that left."""
    engine = survivor(b"abc")
    (stream_id,) = ids(engine)
    engine.attach(announced(stream_id, resumable=False))
    engine.finish(type("S", (), {"stream_id": stream_id}))
    clock.jump_s(config.shm_timeout_s - 0.001)
    successor.sweep()
    reading = successor.resume(stream_id, 0, LABELS)
    got, last = read_all(reading)
    assert (got, type(last)) == (b"abc", Finished)
    reading.leave()


def test_log_that_begins_later_may_have_the_size_that_an_earlier_sidecar_wanted(
    survivor, config, shm, metrics, clock
):
    config = replace(config, stream_bytes=2 * STREAM_BYTES, shm_bytes=8 * STREAM_BYTES)
    other = Broker(config, shm, "/tmp/bell", metrics, clock)
    engine = survivor()
    engine.broker = other
    engine.attach(announced("c" * 32, begun=False))
    reading = other.resume("c" * 32, 0, LABELS)
    engine.write(reading, b"first")
    assert read_all(reading) == (b"first", None)
    reading.leave()


# --- Too many -----------------------------------------------------------------------------


def test_streams_beyond_the_slots_have_none_and_are_found_by_sweeps(survivor, successor):
    engine = survivor(b"a", b"b", b"c", capacity=2)
    first, second, third = ids(engine)
    engine.attach(announced(first), announced(second))
    successor.announce(engine.engine, [announced(third)])
    assert engine.adopted == {first: 0, second: 1, third: None}
    assert successor.active_streams() == 3
    readings = [successor.resume(each, 0, LABELS) for each in (first, second, third)]
    assert [read_all(each)[0] for each in readings] == [b"a", b"b", b"c"]
    successor.scan()  # the others have moved to their slots
    engine.writers[third].write(b"d")
    assert not successor.scan()
    successor.sweep()
    assert read_all(readings[2]) == (b"d", None)
    engine.finish(readings[2])
    successor.sweep()
    assert isinstance(read_all(readings[2])[1], Finished)
    for each in readings:
        each.leave()
    assert engine.cancelled == [first, second]
    assert successor.active_streams() == 2
    engine.obey_cancels()
    successor.sweep()
    assert successor.active_streams() == 0


def test_no_slot_is_given_twice_when_streams_without_one_end(survivor, successor):
    engine = survivor(b"a", b"b", capacity=1)
    first, second = ids(engine)
    engine.attach(announced(first))
    successor.announce(engine.engine, [announced(second)])
    reading = successor.resume(second, 0, LABELS)
    engine.finish(reading)
    successor.sweep()
    waiting = successor.open(cast_request(), Labels("new", "s"), None)
    assert engine.submitted == []
    reading.leave()
    waiting.leave()


def test_streams_beyond_what_an_engine_may_have_are_refused_one_by_one(survivor, successor):
    engine = survivor()
    engine.capacity = 1
    engine = engine.again(successor)
    many = [f"{number:032x}" for number in range(STREAMS_PER_SLOT + 1)]
    engine.attach(announced(many[0], begun=False))
    successor.announce(engine.engine, [announced(each, begun=False) for each in many[1:]])
    assert list(engine.adopted) == many[:-1]
    assert engine.cancelled == many[-1:]
    engine.tidy()


def test_adopted_streams_take_the_budget_and_new_ones_wait_for_it(
    survivor, config, shm, metrics, clock
):
    tight = replace(config, shm_bytes=2 * STREAM_BYTES)
    other = Broker(tight, shm, "/tmp/bell", metrics, clock)
    engine = survivor(b"a", b"b", b"c", capacity=4)
    engine.broker = other
    engine.attach(*map(announced, ids(engine)))
    assert len(engine.adopted) == 3
    assert other.shm_used_bytes() == 3 * STREAM_BYTES  # they exist, whatever the setting is
    waiting = other.open(cast_request(), Labels("new", "s"), None)
    assert engine.submitted == []
    for stream_id in ids(engine)[:2]:
        reading = other.resume(stream_id, 0, LABELS)
        read_all(reading)
        engine.finish(reading)
        read_all(reading)
        reading.leave()
        other.sweep()
    assert len(engine.submitted) == 1
    waiting.leave()


# --- The same sidecar ---------------------------------------------------------------------


def lose(broker: Broker, engine: FakeEngine) -> None:
    """Let an attachment break, not its engine."""
    engine.table.close()
    broker.detach(engine.engine, "its connection broke")


def test_engine_whose_attachment_broke_brings_its_streams_back_and_readers_notice_nothing(
    broker, cast, clock, config
):
    old = cast.engine()
    stream = cast.open()
    old.write(stream, b"abc")
    assert read_all(stream) == (b"abc", None)
    lose(broker, old)
    old.writers[stream.stream_id].write(b"d")
    clock.jump_s(config.engine_lost_timeout_s - 0.001)
    broker.sweep()
    assert read_all(stream) == (b"d", None)
    again = old.again()
    again.attach(announced(stream.stream_id))
    assert again.adopted == {stream.stream_id: 0}
    clock.jump_s(config.engine_lost_timeout_s)
    again.write(stream, b"e")
    assert read_all(stream) == (b"e", None)
    again.finish(stream)
    assert isinstance(read_all(stream)[1], Finished)
    stream.leave()
    assert (old.cancelled, again.cancelled) == ([], [])
    broker.sweep()
    assert_at_rest(broker)
    again.tidy()


def test_words_of_the_old_table_promise_nothing_in_the_new_one(broker, cast):
    old = cast.engine()
    stream = cast.open()
    old.write(stream, b"abc")
    assert read_all(stream) == (b"abc", None)
    place = object()
    source = stream.follow(place)
    assert source is not None
    word = stream.stream.word
    lose(broker, old)
    again = old.again()
    again.attach(announced(stream.stream_id))
    assert source.promised(word + (2 << 1), 100) == b""  # beyond what is committed
    assert stream.follow(place) is None  # until the new table has said something
    again.write(stream, b"d")
    assert read_all(stream) == (b"d", None)
    assert stream.follow(place) is source
    stream.leave()
    again.tidy()


def test_window_begins_again_when_a_stream_comes_back_and_holds_up_no_other(
    broker, cast, clock, config
):
    engines = [cast.engine(model) for model in ("a", "b")]
    for engine in engines:
        reading = cast.open(engine.models[0], resumable=True)
        engine.write(reading, b"abc")
        reading.leave()
        clock.jump_s(1)
    (first,), (second,) = map(ids, engines)
    lose(broker, engines[0])
    again = engines[0].again()
    again.attach(announced(first, model="a", resumable=True))
    clock.jump_s(config.resume_window_s - 1)
    broker.sweep()
    assert (again.cancelled, engines[1].cancelled) == ([], [second])
    clock.jump_s(1)
    broker.sweep()
    assert again.cancelled == [first]
    again.tidy()


def test_engine_that_comes_back_too_late_is_told_to_stop(broker, cast, clock, config):
    old = cast.engine()
    stream = cast.open()
    old.write(stream, b"abc")
    lose(broker, old)
    clock.jump_s(config.engine_lost_timeout_s)
    broker.sweep()
    got, last = read_all(stream)
    assert got == b"abc"
    assert isinstance(failure(last), EngineLost)
    again = old.again()
    again.attach(announced(stream.stream_id))
    assert (again.adopted, again.cancelled) == ({}, [stream.stream_id])
    stream.leave()
    again.tidy()


def test_stream_whose_client_left_while_its_engine_was_away_is_cancelled_when_it_comes_back(
    broker, cast, clock, shm
):
    old = cast.engine()
    stream = cast.open()
    old.write(stream, b"abc")
    lose(broker, old)
    stream.leave()
    assert streams_in(shm)  # the engine still writes it
    again = old.again()
    again.attach(announced(stream.stream_id))
    assert (again.adopted, again.cancelled) == ({}, [stream.stream_id])
    again.obey_cancels()
    clock.jump_s(10)
    broker.sweep()
    assert streams_in(shm) == []
    assert_at_rest(broker)
    again.tidy()


def test_stream_that_was_to_be_stopped_while_its_engine_was_away_is_stopped_when_it_is_back(
    broker, cast
):
    old = cast.engine()
    stream = cast.open()
    old.write(stream, b"abc")
    lose(broker, old)
    broker.cancel_stream(stream.stream_id)
    again = old.again()
    again.attach(announced(stream.stream_id))
    assert list(again.adopted) == again.cancelled == [stream.stream_id]
    again.obey_cancels()
    got, last = read_all(stream)
    assert (got, type(last)) == (b"abc", Finished)
    stream.leave()
    again.tidy()


def test_stop_that_was_said_to_the_old_attachment_is_said_to_the_new_one(broker, cast):
    old = cast.engine()
    stream = cast.open()
    old.write(stream, b"abc")
    broker.cancel_stream(stream.stream_id)
    assert old.cancelled == [stream.stream_id]
    lose(broker, old)  # perhaps before the engine has read it
    again = old.again()
    again.attach(announced(stream.stream_id))
    assert again.cancelled == [stream.stream_id]
    stream.leave()
    again.tidy()


def test_engine_may_be_back_before_the_end_of_its_old_attachment_is_noticed(broker, cast, clock):
    old = cast.engine()
    stream = cast.open()
    old.write(stream, b"abc")
    again = old.again()
    again.attach(announced(stream.stream_id))
    assert again.adopted == {stream.stream_id: 0}
    assert isinstance(old.closed[0], EngineLost)
    lose(broker, old)
    again.write(stream, b"d")
    assert read_all(stream) == (b"abcd", None)
    again.finish(stream)
    assert isinstance(read_all(stream)[1], Finished)
    stream.leave()
    clock.jump_s(1)
    broker.sweep()
    assert_at_rest(broker)
    again.tidy()


def test_engine_gets_no_stream_of_another_engine_by_announcing_it(broker, cast):
    owner = cast.engine(name="owner")
    stream = cast.open()
    owner.write(stream, b"abc")
    thief = owner.again(name="thief")
    thief.attach(announced(stream.stream_id))
    assert (thief.adopted, thief.cancelled, owner.cancelled) == ({}, [stream.stream_id], [])
    owner.write(stream, b"d")
    assert read_all(stream) == (b"abcd", None)
    stream.leave()
    thief.tidy()


def test_engine_gets_no_stream_that_still_waits_in_the_queue(broker, cast):
    engine = cast.engine(capacity=1)
    running, queued = cast.open(), cast.open()
    broker.announce(engine.engine, [announced(queued.stream_id)])
    assert (engine.adopted, engine.cancelled) == ({}, [queued.stream_id])
    assert broker.queue_length() == 1
    queued.leave()
    running.leave()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")
def test_log_of_another_user_than_the_engines_is_not_adopted(survivor, successor, shm):
    engine = survivor(b"abc", b"xyz")
    found, unknown = ids(engine)
    for each in (found, unknown):
        os.chown(f"{shm.path}/rrpa_{each}", 12345, -1)
    reading = successor.resume(found, 0, LABELS)
    engine.attach(*map(announced, ids(engine)))
    assert (engine.adopted, sorted(engine.cancelled)) == ({}, sorted([found, unknown]))
    reading.leave()


def test_begun_stream_without_a_file_is_told_to_stop_and_its_reader_why(survivor, successor):
    engine = survivor()
    unread, awaited = "c" * 32, "d" * 32
    reading = successor.resume(awaited, 0, LABELS)
    engine.attach(announced(unread), announced(awaited))
    assert engine.cancelled == [unread, awaited]
    assert "file was removed" in str(failure(reading.poll()))
    reading.leave()
    successor.sweep()
    assert successor.active_streams() == successor.shm_used_bytes() == 0


def test_stream_that_this_attachment_has_already_is_not_announced_again(broker, cast):
    engine = cast.engine()
    stream = cast.open()
    with pytest.raises(InvalidRequest, match="came twice"):
        broker.announce(engine.engine, [announced("c" * 32), announced(stream.stream_id)])
    assert engine.adopted == {}
    stream.leave()


def test_announcement_that_is_refused_takes_in_nothing(successor, survivor):
    engine = survivor(b"abc").attach()
    with pytest.raises(InvalidRequest, match="stream_id"):
        successor.announce(engine.engine, [*map(announced, ids(engine)), announced("C" * 32)])
    assert (engine.adopted, engine.cancelled, successor.busy) == ({}, [], False)


def test_engines_are_sent_on_when_the_doors_are_closed_and_not_before(broker, cast):
    engines = [cast.engine(), cast.engine()]
    broker.drain()
    assert [engine.drains for engine in engines] == [0, 0]
    broker.send_engines_on()
    assert [engine.drains for engine in engines] == [1, 1]
    assert broker.engines() == 2


def test_metrics_count_nothing_that_was_refused(survivor, successor, metrics: Metrics):
    engine = survivor()
    engine.attach(announced("c" * 32, begun=True))
    assert metrics.totals.streams_adopted == 0


# --- Engines that lie ---------------------------------------------------------------------


def unborn(number: int) -> OpenStream:
    return announced(f"{number:032x}", begun=False)


def test_streams_that_exist_in_an_announcement_only_take_no_room_of_others(
    survivor, successor, cast, config
):
    engine = survivor(capacity=32).attach(*map(unborn, range(32)))
    assert len(engine.adopted) == 32 > config.max_streams
    assert successor.shm_used_bytes() == 0
    other = survivor(model="other").attach()
    stream = successor.open(cast_request("other"), LABELS, None)
    assert [each.stream_id for each in other.submitted] == [stream.stream_id]
    begun = f"{5:032x}"
    engine.begin(begun)
    reading = successor.resume(begun, 0, LABELS)
    engine.write(reading, b"it is real")
    assert successor.shm_used_bytes() == 2 * STREAM_BYTES, "a file costs what it may become"
    reading.leave()
    stream.leave()


def test_no_more_streams_without_a_file_are_taken_in_than_calls_could_have_made(
    survivor, successor, config
):
    limit = UNBORN_PER_CALL * config.max_open_calls
    engine = survivor(b"real", capacity=limit + 2)
    (real,) = ids(engine)
    engine.attach(*map(unborn, range(limit + 1)), announced(real))
    assert engine.cancelled == [f"{limit:032x}"]
    assert real in engine.adopted, "a file is no lie"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")
def test_engine_of_another_user_ends_no_attachment_by_its_name(broker, cast, shm):
    owner = cast.engine(name="twin")
    stream = cast.open()
    owner.write(stream, b"abc")
    thief = owner.again()
    os.chown(f"{shm.path}/rrpa_table_{thief.table_id}", 12345, -1)
    thief.attach(announced(stream.stream_id))
    assert (thief.adopted, thief.cancelled, owner.closed) == ({}, [stream.stream_id], [])
    owner.write(stream, b"d")
    assert read_all(stream) == (b"abcd", None)
    stream.leave()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")
def test_engine_of_another_user_gets_no_lost_stream_whose_log_was_not_seen(broker, cast, shm):
    owner = cast.engine()
    stream = cast.open()
    broker.detach(owner.engine, "its connection broke")
    thief, back = owner.again(), owner.again()
    os.chown(f"{shm.path}/rrpa_table_{thief.table_id}", 12345, -1)
    thief.attach(unborn_as(stream))
    assert (thief.adopted, thief.cancelled) == ({}, [stream.stream_id])
    back.attach(unborn_as(stream))
    assert list(back.adopted) == [stream.stream_id]
    stream.leave()


def unborn_as(stream: Reading) -> OpenStream:
    return announced(stream.stream_id, begun=False)


def test_a_reader_that_takes_others_along_when_it_leaves_does_not_spoil_an_announcement(
    broker, cast
):
    engine = cast.engine()
    streams = [cast.open() for _ in range(2)]
    for stream in streams:
        engine.write(stream, b"abc")
    broker.detach(engine.engine, "its connection broke")
    broker.cancel_stream(streams[1].stream_id)
    engine.writers[streams[0].stream_id].finish(End(reason=1))
    streams[0].waker = streams[1].leave  # both came over one connection, which is gone
    back = engine.again().attach(*(announced(each.stream_id) for each in streams))
    assert back.cancelled == [streams[1].stream_id]
    streams[0].leave()
