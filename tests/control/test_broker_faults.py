"""Engines that fail, die or lie: their own streams end, all others go on."""

from __future__ import annotations

import os
import resource
from functools import partial

import pytest

from rrpa_sidecar.control.lifecycle import State
from rrpa_sidecar.errors import (
    CapacityExhausted,
    CorruptLog,
    EngineLost,
    EngineStatus,
    ModelNotFound,
    NoEngine,
    StreamMisuse,
)
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.status import Code, status_of
from rrpa_sidecar.stream.events import Data, Finished
from tests.control.engine import STREAM_BYTES, assert_at_rest, failure, read_all, streams_in
from tests.harness.limits import too_many_open_files

# --- Engines that fail --------------------------------------------------------------------


def test_rejected_stream_fails_with_the_engines_status(broker, cast):
    engine = cast.engine(capacity=1)
    stream = cast.open()
    broker.rejected(engine.engine, stream.stream_id, 3, "prompt is too long")
    error = failure(stream.poll())
    assert isinstance(error, EngineStatus)
    assert status_of(error) == (3, "prompt is too long")
    stream.leave()
    assert engine.cancelled == []
    assert_at_rest(broker)


def test_rejection_of_a_stranger_or_of_an_ended_stream_is_ignored(broker, cast):
    engine, other = cast.engine(), cast.engine("other")
    stream = cast.open()
    broker.rejected(other.engine, stream.stream_id, 3, "not mine")
    broker.rejected(engine.engine, "no such stream", 3, "?")
    engine.finish(stream)
    broker.rejected(engine.engine, stream.stream_id, 3, "too late")
    assert isinstance(stream.poll(), Finished)


def test_rejection_of_a_stream_that_has_begun_is_the_engines_misuse(broker, cast):
    engine = cast.engine()
    stream = cast.open()
    engine.write(stream, b"a")
    with pytest.raises(StreamMisuse):
        broker.rejected(engine.engine, stream.stream_id, 3, "?")
    assert stream.stream.state is State.STREAMING


def test_status_of_the_engine_comes_after_its_bytes(cast):
    engine = cast.engine()
    stream = cast.open()
    engine.write(stream, b"half an")
    engine.finish(stream, End(code=13, reason=5, text="CUDA error"))
    got, last = read_all(stream)
    assert got == b"half an"
    assert status_of(failure(last)) == (13, "CUDA error")


def test_killed_engine_delivers_what_it_committed_then_fails_at_once(broker, cast, shm):
    engine = cast.engine()
    stream = cast.open()
    engine.begin(stream.stream_id).write(b"abc\xe2\x82")
    engine.die()
    got, last = read_all(stream)
    assert got == "abc\ufffd".encode()
    error = failure(last)
    assert isinstance(error, EngineLost)
    assert "after 6 bytes" in str(error)
    assert "fake" in str(error)
    assert engine.cancelled == []
    stream.leave()
    assert shm.names() == []  # the table of the dead goes too
    assert_at_rest(broker)


def test_killed_engine_before_the_first_byte_fails_at_once_as_retryable(cast):
    engine = cast.engine()
    stream = cast.open()
    woken = []
    stream.waker = lambda: woken.append(1)
    engine.die()
    assert woken
    error = failure(stream.poll())
    assert isinstance(error, EngineLost)
    assert "try again" in str(error)


def test_end_that_was_written_just_before_the_loss_is_a_normal_end(cast):
    engine = cast.engine()
    stream = cast.open()
    writer = engine.begin(stream.stream_id)
    writer.write(b"all")
    writer.finish(End(reason=1))
    engine.die()
    got, last = read_all(stream)
    assert got == b"all"
    assert isinstance(last, Finished)


def test_detached_engine_that_still_holds_its_log_is_given_up_after_the_timeout(
    broker, cast, clock, config, shm
):
    engine = cast.engine()
    stream = cast.open()
    engine.write(stream, b"a")
    broker.detach(engine.engine, "it ended its call")
    engine.writers[stream.stream_id].write(b"b")
    assert read_all(stream) == (b"ab", None)  # it may still be writing its end
    clock.jump_s(config.engine_lost_timeout_s - 1e-9)
    broker.sweep()
    assert stream.poll() is None
    clock.jump_s(1e-9)
    broker.sweep()
    assert isinstance(failure(stream.poll()), EngineLost)
    stream.leave()
    assert len(streams_in(shm)) == 1  # its writer lives: not ours to remove
    engine.tidy()
    clock.jump_s(6)
    broker.sweep()
    assert shm.names() == []
    assert_at_rest(broker)


def test_writer_that_gives_up_while_its_engine_stays_is_found_by_the_sweeps(broker, cast):
    engine = cast.engine(capacity=8)
    streams = [cast.open() for _ in range(8)]
    for stream in streams:
        engine.write(stream, b"a")
    engine.writers[streams[5].stream_id].close()
    for _ in range(8):
        broker.sweep()
    assert isinstance(failure(read_all(streams[5])[1]), EngineLost)
    assert [read_all(stream)[1] for stream in streams[:5]] == [None] * 5


def test_a_log_that_a_killed_engine_was_just_making_goes_with_the_engine(broker, cast, shm):
    engine = cast.engine()
    stream = cast.open()
    os.close(shm.create(layout.temporary_name(stream.stream_id, 1), STREAM_BYTES))
    engine.die()
    assert isinstance(failure(stream.poll()), EngineLost)
    stream.leave()
    assert shm.names() == []
    assert_at_rest(broker)


def test_queued_work_of_a_model_that_nobody_serves_any_more_fails_as_retryable(broker, cast):
    engine, other = cast.engine(capacity=1), cast.engine("other", "second", capacity=1)
    running, waiting = cast.open(), cast.open()
    cast.open("other")
    elsewhere = cast.open("second")
    engine.die()
    assert isinstance(failure(waiting.poll()), NoEngine)
    assert isinstance(failure(read_all(running)[1]), EngineLost)
    assert elsewhere.stream.state is State.QUEUED
    assert other.cancelled == []
    assert broker.queue_length() == 1


def test_queued_work_goes_to_an_engine_of_the_model_that_is_left(cast):
    first, second = cast.engine(capacity=1), cast.engine(capacity=1)
    running, also_running = cast.open(), cast.open()
    waiting = cast.open()
    first.die()
    second.finish(also_running)
    assert second.submitted[-1].stream_id == waiting.stream_id
    assert running.stream.state is State.ENDED


def test_new_engine_of_the_same_name_serves_on_after_the_old_one_died(broker, cast):
    old = cast.engine(name="twin")
    twin = cast.engine(name="twin")  # names are labels
    assert broker.engines() == 2
    old.die()
    stream = cast.open()
    twin.finish(stream)
    assert isinstance(stream.poll(), Finished)


def test_readiness_changes_with_the_first_engine_the_last_engine_and_the_drain(broker, cast):
    told: list[bool] = []
    broker.on_ready_change = told.append
    first, second = cast.engine(), cast.engine()
    first.die()
    assert told == [True]
    second.die()
    cast.engine()
    broker.drain()
    assert told == [True, False, True, False]


def test_engine_loss_while_clients_leave_leaves_nothing(broker, cast, shm):
    engine = cast.engine(capacity=3)
    unseen, seen, waiting = cast.open(), cast.open(), cast.open()
    engine.write(seen, b"a")
    unseen.leave()
    seen.leave()
    engine.die()
    waiting.leave()
    assert shm.names() == []
    assert_at_rest(broker)


# --- Hostile engines ----------------------------------------------------------------------


def spoil_cursor(path: str) -> None:
    with open(path, "r+b") as file:
        file.seek(128)
        file.write((1 << 60).to_bytes(8, "little"))


def truncate(path: str) -> None:
    os.truncate(path, 65536 + 1)


@pytest.mark.parametrize("spoil", [spoil_cursor, truncate])
def test_corrupt_log_fails_its_own_stream_only_and_quarantines_its_engine(
    broker, cast, shm, metrics, spoil
):
    engine = cast.engine()
    bad, good = cast.open(), cast.open()
    engine.write(bad, b"0123456789")
    engine.write(good, b"fine")
    assert bad.poll() == Data(0, b"0123456789")
    engine.writers[bad.stream_id].write(b"more")
    spoil(f"{shm.path}/rrpa_{bad.stream_id}")
    broker.scan()
    assert isinstance(failure(bad.poll()), CorruptLog)
    assert read_all(good) == (b"fine", None)
    assert engine.cancelled == [bad.stream_id]
    bad.leave()
    assert engine.cancelled == [bad.stream_id]
    assert metrics.totals.engines_quarantined == 1
    assert not broker.ready
    with pytest.raises(NoEngine):
        cast.open()
    engine.writers[good.stream_id].write(b" and whole")
    broker.scan()
    assert read_all(good) == (b" and whole", None)
    engine.finish(good)
    assert isinstance(read_all(good)[1], Finished)
    assert engine.closed == []  # the bad log's writer still lives
    engine.writers[bad.stream_id].close()
    broker.sweep()
    (why,) = engine.closed
    assert status_of(why)[0] is Code.DATA_LOSS
    assert broker.engines() == 0
    good.leave()
    again = cast.engine()
    clean = cast.open()
    again.finish(clean)
    assert isinstance(clean.poll(), Finished)
    clean.leave()
    assert metrics.totals.engines_quarantined == 1
    engine.tidy()
    broker.sweep()
    assert streams_in(shm) == []


def test_requests_that_wait_for_a_quarantined_engine_fail_as_retryable(broker, cast, shm):
    engine = cast.engine(capacity=1)
    bad, waiting = cast.open(), cast.open()
    engine.write(bad, b"0123456789")
    spoil_cursor(f"{shm.path}/rrpa_{bad.stream_id}")
    broker.sweep()
    assert isinstance(failure(waiting.poll()), NoEngine)


def test_other_engines_of_the_model_go_on_when_one_is_quarantined(broker, cast, shm):
    first, second = cast.engine(), cast.engine()
    bad = cast.open()
    first.write(bad, b"0123456789")
    spoil_cursor(f"{shm.path}/rrpa_{bad.stream_id}")
    broker.sweep()
    streams = [cast.open() for _ in range(2)]
    assert [each.stream_id for each in second.submitted] == [each.stream_id for each in streams]
    assert broker.ready


def test_log_that_was_removed_before_it_was_seen_is_lost_at_once(broker, cast, shm, clock):
    engine = cast.engine()
    for _ in range(2):  # the second time the slot has had a log before
        lost, other = cast.open(), cast.open()
        engine.begin(lost.stream_id).write(b"nobody reads this")
        os.unlink(f"{shm.path}/rrpa_{lost.stream_id}")
        broker.sweep()
        error = failure(lost.poll())
        assert isinstance(error, CorruptLog)
        assert "removed" in str(error)
        engine.finish(other)
        lost.leave()
        other.leave()
        broker.sweep()
        assert engine.closed == []  # its writer still lives
        engine.obey_cancels()
        broker.sweep()
        assert len(engine.closed) == 1
        engine.tidy()
        clock.jump_s(1)
        broker.sweep()
        assert_at_rest(broker)
        engine = cast.engine()
        engine.finish(before := cast.open())
        before.leave()


def test_log_that_is_not_born_yet_is_waited_for(broker, cast, clock):
    engine = cast.engine(capacity=1)
    for _ in range(3):  # each time the slot's word is that of the log before
        stream = cast.open()
        for _ in range(10):
            clock.jump_s(1)
            broker.sweep()
        assert stream.poll() is None
        engine.finish(stream)
        assert isinstance(stream.poll(), Finished)
        stream.leave()


def test_engine_whose_process_is_gone_is_detached_though_its_call_goes_on(broker, cast):
    """A child that it forked may keep the connection open."""
    engine = cast.engine()
    stream = cast.open()
    engine.write(stream, b"all there is")
    engine.tidy()
    broker.sweep()
    assert broker.engines() == 0
    got, last = read_all(stream)
    assert got == b"all there is"
    assert isinstance(failure(last), EngineLost)


@pytest.mark.parametrize("kind", ["link", "directory", "short", "other magic", "fifo"])
def test_file_that_is_no_log_gives_corrupt_log_and_nothing_outside_is_touched(
    broker, cast, shm, tmp_path, kind
):
    engine = cast.engine(capacity=1)
    stream = cast.open()
    path = f"{shm.path}/rrpa_{stream.stream_id}"
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * STREAM_BYTES)
    if kind == "link":
        os.symlink(secret, path)
    elif kind == "directory":
        os.mkdir(path)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        with open(path, "wb") as file:
            file.truncate(10 if kind == "short" else STREAM_BYTES)
    engine.table.begin(0)
    broker.scan()
    assert isinstance(failure(stream.poll()), CorruptLog)
    assert engine.cancelled == [stream.stream_id]
    stream.leave()
    broker.sweep()
    assert secret.read_bytes() == b"s" * STREAM_BYTES
    assert os.path.lexists(path)  # not ours, not removed
    engine.table.set(0, 5, True)
    broker.sweep()
    assert isinstance(engine.closed[0], CorruptLog)
    cast.engine()
    assert cast.open().stream.state is State.SUBMITTED


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")
def test_log_of_another_user_than_its_table_is_corrupt(broker, cast, shm):
    engine = cast.engine()
    stream = cast.open()
    engine.begin(stream.stream_id).write(b"forged")
    os.chown(f"{shm.path}/rrpa_{stream.stream_id}", 12345, -1)
    broker.scan()
    assert isinstance(failure(stream.poll()), CorruptLog)


def test_stream_waits_unharmed_while_too_many_files_are_open(broker, cast, caplog):
    engine = cast.engine()
    stream = cast.open()
    engine.begin(stream.stream_id).write(b"all of it")
    with too_many_open_files():
        for _ in range(3):
            engine.write(stream, b".")
            broker.sweep()
        assert stream.poll() is None
    engine.finish(stream)
    got, last = read_all(stream)
    assert got == b"all of it..."
    assert isinstance(last, Finished)
    assert caplog.text.count("ulimit -n") == 1
    assert engine.cancelled == []
    stream.leave()
    assert_at_rest(broker)


def test_file_that_could_not_be_opened_is_removed_later(broker, cast, shm, clock):
    engine = cast.engine()
    stream = cast.open()
    engine.finish(stream)
    assert isinstance(stream.poll(), Finished)
    with too_many_open_files():
        stream.leave()
    clock.jump_s(1)
    broker.sweep()
    assert streams_in(shm) == []
    assert_at_rest(broker)


def test_engine_that_shortens_its_table_is_quarantined_and_its_streams_go_on(broker, cast, shm):
    bad, good = cast.engine("bad"), cast.engine("good")
    spoiled, kept = cast.open("bad"), cast.open("good")
    path = f"{shm.path}/rrpa_table_{bad.table_id}"
    size = os.stat(path).st_size
    os.truncate(path, 65536)
    good.begin(kept.stream_id).write(b"a")
    broker.scan()
    os.truncate(path, size)  # or our own stores would be SIGBUS
    with pytest.raises(ModelNotFound):
        cast.open("bad")
    assert read_all(kept) == (b"a", None)
    bad.begin(spoiled.stream_id).write(b"all of it")
    broker.sweep()
    assert read_all(spoiled) == (b"all of it", None)
    assert bad.closed == []
    bad.finish(spoiled)
    broker.sweep()
    assert isinstance(read_all(spoiled)[1], Finished)
    assert isinstance(bad.closed[0], CorruptLog)
    assert broker.engines() == 1


def test_words_of_slots_without_a_stream_are_ignored(broker, cast):
    engine = cast.engine(capacity=4)
    stream = cast.open()
    for slot in range(4):
        engine.table.set(slot, 1 << 40, True)
    broker.scan()
    assert stream.stream.state is State.SUBMITTED
    assert stream.poll() is None


def test_tokens_whose_words_are_never_written_are_found_by_the_sweeps(broker, cast):
    engine = cast.engine(capacity=8)
    streams = [cast.open() for _ in range(8)]
    woken = []
    for stream in streams:
        engine.begin(stream.stream_id).move_to(None)
        stream.waker = partial(woken.append, stream)
    for token in (b"a", b"b"):
        for stream in streams:
            engine.writers[stream.stream_id].write(token)
        woken.clear()
        for _ in range(8):
            broker.sweep()
        assert set(woken) == set(streams)
        assert [read_all(stream) for stream in streams] == [(token, None)] * 8


@pytest.mark.parametrize(("clock_error_s", "taken_s"), [(-0.5, 0), (1e9, 0.25)])
def test_stamp_from_the_past_or_future_gives_no_time_that_cannot_be(
    broker, cast, metrics, clock, clock_error_s, taken_s
):
    engine = cast.engine()
    stream = cast.open()
    writer = engine.begin(stream.stream_id)
    clock.jump_s(clock_error_s)  # the writer's clock
    writer.write(b"a")
    clock.jump_s(0.25 - clock_error_s)
    broker.scan()
    read_all(stream)
    assert metrics.model("test").engine_first_token_s.total_s == pytest.approx(taken_s)
    timing = stream.timing
    assert timing.first_commit_ns - timing.submitted_ns == pytest.approx(taken_s * 1e9)


def test_move_whose_waker_raised_is_told_again_by_the_next_sweep(broker, cast):
    engine = cast.engine()
    stream = cast.open()
    engine.write(stream, b"a")
    read_all(stream)
    stream.waker = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        engine.write(stream, b"b")
    woken = []
    stream.waker = lambda: woken.append(1)
    broker.sweep()
    assert woken


# --- A sidecar without descriptors --------------------------------------------------------


@pytest.fixture
def no_more_files():
    """Return a function: True, this process may open no more files; False, it may again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def limit(none_left: bool) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3 if none_left else soft, hard))

    yield limit
    limit(False)


def test_stream_whose_log_cannot_be_opened_waits_and_loses_nothing(broker, cast, no_more_files):
    engine = cast.engine()
    stream = cast.open()
    engine.begin(stream.stream_id)
    no_more_files(True)
    engine.write(stream, b"all of it")
    engine.finish(stream)
    broker.sweep()
    assert stream.poll() is None
    with pytest.raises(CapacityExhausted, match=r"ulimit -n"):
        cast.open()
    no_more_files(False)
    broker.sweep()
    assert read_all(stream)[0] == b"all of it"
    stream.leave()
    assert_at_rest(broker)


def test_file_that_cannot_be_checked_for_want_of_descriptors_is_removed_later(
    broker, cast, shm, clock, no_more_files
):
    engine = cast.engine()
    stream = cast.open()
    engine.write(stream, b"a")
    engine.finish(stream)
    read_all(stream)
    no_more_files(True)
    stream.leave()
    assert broker.busy
    no_more_files(False)
    assert streams_in(shm) != []
    assert broker.shm_used_bytes() == STREAM_BYTES
    clock.jump_s(1)
    broker.sweep()
    assert streams_in(shm) == []
    assert_at_rest(broker)
