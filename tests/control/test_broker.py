"""Streams between clients and engines, with real shared memory and a clock that jumps."""

from __future__ import annotations

import resource
import time
from dataclasses import replace

import pytest

from rrpa_sidecar.control.broker import Broker
from rrpa_sidecar.control.lifecycle import State
from rrpa_sidecar.control.requests import model_of
from rrpa_sidecar.errors import (
    CapacityExhausted,
    CorruptLog,
    DeadlinePassed,
    Draining,
    InvalidRequest,
    ModelNotFound,
    NoEngine,
)
from rrpa_sidecar.pb.rrpa_pb2 import CreateStreamRequest
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import Space
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.table import Moves
from rrpa_sidecar.shm.writer import LogWriter
from rrpa_sidecar.status import MESSAGE_LIMIT_BYTES
from rrpa_sidecar.stream.events import Data, Finished
from tests.control.engine import (
    STREAM_BYTES,
    Cast,
    assert_at_rest,
    failure,
    read_all,
    streams_in,
)
from tests.shm.support import poke

# --- The short way of a token--------------------------------------------------------------


class Followed:
    """A stream that a front end follows since its first token. Implements ShortWay."""

    def __init__(self, cast: Cast) -> None:
        self.engine = cast.engine(capacity=1)
        self.stream = cast.open()
        self.woken = self.begun = self.ended = 0
        self.taken = b""
        self.stream.waker = self.wake
        self.engine.broker.short_way = self
        self.engine.write(self.stream, b"one ")
        assert self.stream.poll() == Data(0, b"one ")
        self.reader = self.stream.follow(self)
        self.woken = self.begun = self.ended = 0

    def wake(self) -> None:
        self.woken += 1

    def begin_step(self) -> None:
        self.begun += 1

    def take(self, places: list[object], moves: Moves) -> list[tuple[int, int]]:
        others = []
        for slot, word in moves.pairs:
            if places[slot] is not self or word & 1:
                others.append((slot, word))
            else:
                self.taken += self.reader.promised(word, 4096)
        return others

    def end_step(self) -> None:
        self.ended += 1


def test_a_followed_stream_is_taken_from_the_scan_and_nobody_is_woken(broker, cast):
    followed = Followed(cast)
    followed.engine.write(followed.stream, b"two ")
    followed.engine.write(followed.stream, b"three")
    assert followed.taken == b"two three"
    assert (followed.woken, followed.begun, followed.ended) == (0, 2, 2)
    broker.scan()
    assert (followed.begun, followed.ended) == (2, 2), "nothing moved"


def test_what_was_committed_without_a_word_is_found_by_the_sweeps(broker, cast, clock):
    engine = cast.engine(capacity=1)
    stream = cast.open()
    woken: list[str] = []
    stream.waker = lambda: woken.append("now")
    writer = LogWriter.create(engine.directory, stream.stream_id, stream_bytes=STREAM_BYTES)
    engine.writers[stream.stream_id] = writer
    for offset, token in ((0, b"one "), (4, b"two ")):
        writer.write(token)
        woken.clear()
        for _ in range(2):
            clock.jump_s(1)
            broker.sweep()
        assert woken, "its front end would wait for ever"
        assert stream.poll() == Data(offset, token)
    woken.clear()
    broker.sweep()
    assert not woken, "nothing is left to read"


def test_a_scan_in_which_two_engines_have_moved_is_one_step(broker, cast):
    followed = Followed(cast)
    other = cast.engine()
    followed.engine.table.set(followed.stream.stream.slot, 4, True)
    other.table.set(0, 0, True)
    broker.scan()
    assert (followed.begun, followed.ended) == (1, 1)


def test_the_end_of_a_followed_stream_wakes_its_front_end(broker, cast, shm):
    followed = Followed(cast)
    followed.engine.write(followed.stream, b"two")
    followed.engine.finish(followed.stream)
    assert followed.woken > 0
    assert followed.taken == b"two"
    assert read_all(followed.stream) == (b"", Finished(7, 1, None, 0, 0, 0))
    assert followed.engine.engine.places == [None], "its slot is free for the next"
    followed.stream.leave()
    assert streams_in(shm) == []
    assert_at_rest(broker)


def test_what_was_taken_before_a_fault_in_the_scan_leaves_all_the_same(broker, cast):
    followed = Followed(cast)
    other = cast.engine("other")
    stream = cast.open("other")
    stream.waker = lambda: 1 / 0
    other.begin(stream.stream_id).write(b"x")
    with pytest.raises(ZeroDivisionError):
        followed.engine.write(followed.stream, b"two")
    assert followed.taken == b"two"
    assert followed.begun == followed.ended


def test_replacements_of_the_short_way_are_counted_at_the_end(cast, metrics):
    followed = Followed(cast)
    followed.engine.write(followed.stream, b"\xff!")
    assert followed.taken == "\ufffd!".encode()
    followed.stream.leave()
    followed.stream.leave()
    assert followed.stream.poll() is None
    assert metrics.model("test").replaced_characters == 1


def test_after_it_left_a_stream_has_no_place_and_its_word_promises_nothing(cast):
    followed = Followed(cast)
    word = followed.engine.engine.table.word(followed.stream.stream.slot)
    followed.stream.leave()
    assert followed.engine.engine.places == [None]
    followed.engine.write(followed.stream, b"two")
    assert (followed.taken, followed.woken) == (b"", 0)
    assert followed.stream.follow(followed) is None
    assert word == (4, False)
    promise = 1 << layout.WORD_TURN_SHIFT | 7 << 1
    assert followed.reader.promised(promise, 4096) == b"", "the log may be closed"


def test_the_next_stream_of_a_slot_does_not_have_the_place_of_the_one_before(cast):
    followed = Followed(cast)
    followed.engine.finish(followed.stream)
    followed.stream.leave()
    woken = []
    following = cast.open()
    following.waker = lambda: woken.append(1)
    followed.engine.write(following, b"next")
    assert (following.stream.slot, followed.taken, len(woken)) == (
        followed.stream.stream.slot,
        b"",
        1,
    )
    assert following.poll() == Data(0, b"next")


def test_a_stream_follows_by_the_word_that_its_front_end_has_met_or_else_its_own(cast):
    followed = Followed(cast)
    stream, word = followed.stream, followed.stream.stream.word
    stream.stream.word = 0  # as if no scan had woken it
    assert stream.follow(followed) is None
    assert stream.follow(followed, word) is followed.reader


def test_only_the_stream_of_a_slot_can_have_its_place(cast):
    followed = Followed(cast)
    engine = followed.engine.engine
    other = cast.engine().engine
    stranger = cast.open()
    assert (stranger.stream.engine, stranger.stream.slot) == (other, followed.stream.stream.slot)
    assert not engine.put(stranger.stream, stranger)
    assert engine.places == [followed]


@pytest.mark.parametrize("uncommitted", [b"", b"x" * 4092])
def test_a_word_ahead_of_its_log_costs_its_own_stream_alone(broker, cast, shm, uncommitted):
    followed = Followed(cast)
    other = cast.engine()
    bystander = cast.open()
    poke(shm, followed.stream.stream_id, layout.HEADER_BYTES + 4, uncommitted)
    followed.engine.table.set(followed.stream.stream.slot, 4096, False)
    broker.scan()
    assert followed.taken == uncommitted, "no byte of a hole is taken"
    followed.engine.finish(followed.stream)
    last = followed.stream.poll()
    if uncommitted:
        assert isinstance(failure(last), CorruptLog)
    else:
        assert isinstance(last, Finished)
    other.write(bystander, b"fine")
    assert bystander.poll() == Data(0, b"fine")


# --- The ordinary way ---------------------------------------------------------------------


def test_tokens_reach_the_client_as_they_are_written(broker, cast, shm):
    engine = cast.engine()
    stream = cast.open()
    assert stream.poll() is None
    engine.write(stream, b"one ")
    assert stream.poll() == Data(0, b"one ")
    assert stream.poll() is None
    engine.write(stream, b"two")
    assert stream.poll() == Data(4, b"two")
    engine.finish(stream)
    assert stream.poll() == Finished(7, 1, None, 0, 0, 0)
    stream.leave()
    assert streams_in(shm) == []
    assert engine.cancelled == []
    assert_at_rest(broker)


def test_engine_gets_the_request_byte_for_byte_with_fields_unknown_to_the_sidecar(broker, cast):
    engine = cast.engine()
    unknown = b"\xfa\x3e\x03abc"  # field 1007, length 3
    request = CreateStreamRequest(model="test").SerializeToString() + unknown
    broker.open(request, cast.open().labels, None)
    assert engine.submitted[1].request == request


def test_names_of_streams_are_the_servers_own_and_client_ids_only_labels(cast):
    engine = cast.engine(capacity=8)
    for name in ["../x", "/etc/x", ".", "", "x" * 300, "a\nb"]:
        stream = cast.open(request_id=name)
        assert len(bytes.fromhex(stream.stream_id)) == 16
        assert engine.submitted[-1].labels.request_id == name
    assert len({each.stream_id for each in engine.submitted}) == 6


def test_front_end_is_woken_by_every_move_and_by_the_end(cast):
    engine = cast.engine()
    stream = cast.open()
    woken = []
    stream.waker = lambda: woken.append(1)
    engine.write(stream, b"a")
    engine.write(stream, b"b")
    engine.finish(stream)
    assert len(woken) == 3


def test_scan_without_a_move_wakes_nobody(broker, cast):
    engine = cast.engine()
    stream = cast.open()
    engine.write(stream, b"a")
    stream.waker = lambda: pytest.fail("woken for nothing")
    read_all(stream)
    broker.scan()


def test_empty_token_makes_no_frame_and_does_not_end_the_stream(cast):
    engine = cast.engine()
    stream = cast.open()
    for token in [b"", b"a", b"", b"b", b""]:
        engine.write(stream, token)
    assert read_all(stream) == (b"ab", None)
    engine.finish(stream)
    assert isinstance(stream.poll(), Finished)


def test_answer_without_a_token_is_one_finish_and_no_first_token(cast, metrics):
    engine = cast.engine()
    stream = cast.open()
    engine.finish(stream, End(reason=2))
    assert stream.poll() == Finished(0, 2, None, 0, 0, 0)
    assert sum(metrics.model("test").engine_first_token_s.counts) == 0


def test_first_token_of_a_stream_is_measured_once(cast, metrics):
    engine = cast.engine()
    stream = cast.open()
    for token in [b"", b"a", b"b"]:
        engine.write(stream, token)
        read_all(stream)
    assert sum(metrics.model("test").engine_first_token_s.counts) == 1


def test_replacements_are_counted_for_the_model(cast, metrics):
    engine = cast.engine()
    stream = cast.open()
    engine.write(stream, b"a\xffb")
    engine.write(stream, "\ufffd".encode())
    engine.write(stream, b"\xc3")
    engine.finish(stream)
    assert read_all(stream)[0] == "a\ufffdb\ufffd\ufffd".encode()
    assert metrics.model("test").replaced_characters == 2


def test_queue_wait_and_engine_time_are_measured_apart(cast, metrics, clock):
    engine = cast.engine(capacity=1)
    first, second = cast.open(), cast.open()
    clock.jump_s(2)
    engine.finish(first)
    clock.jump_s(0.25)
    engine.write(second, b"x")
    clock.jump_s(5)
    read_all(second)
    meter = metrics.model("test")
    assert meter.queue_wait_s.total_s == pytest.approx(2)
    assert meter.engine_first_token_s.total_s == pytest.approx(0.25)
    timing = second.timing
    assert (timing.submitted_ns - timing.accepted_ns) / 1e9 == pytest.approx(2)
    assert (timing.first_commit_ns - timing.submitted_ns) / 1e9 == pytest.approx(0.25)


def test_slow_client_gets_larger_frames_and_holds_no_slot_of_the_engine(broker, cast):
    engine = cast.engine(capacity=1)
    slow = cast.open()
    for _ in range(1000):
        engine.write(slow, b"0123456789")
    engine.finish(slow)
    broker.sweep()
    assert slow.stream.state is State.ENDED
    next_one = cast.open()
    assert engine.submitted[-1].stream_id == next_one.stream_id
    assert slow.poll(limit_bytes=4000) == Data(0, b"0123456789" * 400)
    got, last = read_all(slow)
    assert len(got) == 6000
    assert isinstance(last, Finished)


def test_stream_that_ends_at_the_length_of_the_one_before_it_in_its_slot_is_not_missed(cast):
    engine = cast.engine(capacity=1)
    for _ in range(3):
        stream = cast.open()
        woken = []
        stream.waker = lambda woken=woken: woken.append(1)
        engine.begin(stream.stream_id).write(b"same")
        engine.finish(stream)  # one scan sees begin, write and end together
        assert woken
        assert read_all(stream)[0] == b"same"
        stream.leave()


def test_200_streams_with_the_same_client_ids_never_mix(shm, metrics, clock, config):
    broker = Broker(replace(config, shm_bytes=200 * STREAM_BYTES), shm, "/b", metrics, clock)
    cast = Cast(broker, shm, clock)
    engines = [cast.engine(capacity=100), cast.engine(capacity=100)]
    streams = [cast.open(request_id="same", prompt=str(number)) for number in range(200)]
    by_id = {each.stream_id: engine for engine in engines for each in engine.submitted}
    prompts = {
        each.stream_id: CreateStreamRequest.FromString(each.request).prompt
        for engine in engines
        for each in engine.submitted
    }
    for token in range(3):
        for stream in streams:
            engine = by_id[stream.stream_id]
            engine.write(stream, f"{prompts[stream.stream_id]}:{token};".encode())
    for number, stream in enumerate(streams):
        by_id[stream.stream_id].finish(stream)
        assert read_all(stream)[0] == f"{number}:0;{number}:1;{number}:2;".encode()
        stream.leave()
    assert streams_in(shm) == []
    assert_at_rest(broker)
    cast.close()


# --- Refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model": ""}, "model is empty"),
        ({"model": "a\0b"}, "printable"),
        ({"model": "x" * 129}, "128"),
        ({"model": "modèle"}, "printable"),
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"max_tokens": -(2**31)}, "max_tokens is -2147483648"),
    ],
)
def test_wrong_request_is_refused_before_an_engine_is_touched(cast, fields, says):
    engine = cast.engine()
    with pytest.raises(InvalidRequest, match=says) as caught:
        cast.open(**{"model": "test", **fields})
    assert engine.submitted == []
    assert len(str(caught.value).encode()) <= MESSAGE_LIMIT_BYTES


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_tokens": 0},
        {"max_tokens": 2**31 - 1},
        {"prompt": ""},
        {"prompt": "A\0B"},
        {"stop_sequences": ["a", ""]},
    ],
)
def test_what_the_engine_decides_is_passed_on(cast, fields):
    engine = cast.engine()
    cast.open(**fields)
    assert len(engine.submitted) == 1


def test_request_of_millions_of_parts_is_not_taken_apart():
    """Neither time nor memory goes into what only the engine reads."""
    request = CreateStreamRequest(model="test", max_tokens=3).SerializeToString()
    request += b"\x12\x00" * 4_000_000  # empty messages
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin_s = time.process_time()
    assert model_of(request) == "test"
    assert time.process_time() - begin_s < 0.1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 64 * 1024


@pytest.mark.parametrize("request_bytes", [b"\xff\xff\xff", b"\x0a\x05tes", b"\x0a\x02\xff\xfe"])
def test_bytes_that_are_no_request_are_refused(broker, cast, request_bytes):
    cast.engine()
    with pytest.raises(InvalidRequest, match=r"not a rrpa\.v1\.CreateStreamRequest"):
        broker.open(request_bytes, cast.open().labels, None)


def test_without_an_engine_the_caller_may_try_again_and_a_wrong_model_may_not(cast):
    with pytest.raises(NoEngine):
        cast.open()
    cast.engine("other")
    with pytest.raises(ModelNotFound, match="'test'"):
        cast.open()


@pytest.mark.parametrize("model", ["m" * 128, "'\"\\" * 40])
def test_name_of_an_unknown_model_is_shortened_in_the_text(cast, model):
    cast.engine()
    with pytest.raises(ModelNotFound) as caught:
        cast.open(model)
    assert len(str(caught.value).encode()) <= MESSAGE_LIMIT_BYTES


def test_full_queue_refuses_and_names_slots_and_queue(broker, cast):
    cast.engine(capacity=2)
    for _ in range(2 + 4):
        cast.open()
    assert broker.queue_length() == 4
    with pytest.raises(CapacityExhausted, match=r"all 2 slots .* 4 of 4 .*--queue-limit"):
        cast.open()
    assert broker.queue_length() == 4


def test_waiting_requests_are_bounded_by_their_bytes_too(config, shm, metrics, clock):
    broker = Broker(replace(config, queue_bytes=10_000), shm, "/tmp/bell", metrics, clock)
    cast = Cast(broker, shm, clock)
    cast.engine(capacity=1)
    cast.open(prompt="x" * 20_000)  # it runs at once, and is not the queue's
    waiting = cast.open(prompt="x" * 6_000)
    with pytest.raises(CapacityExhausted, match=r"of 10000 bytes \(--queue-bytes\)") as caught:
        cast.open(prompt="x" * 6_000)
    assert len(str(caught.value).encode()) <= MESSAGE_LIMIT_BYTES
    cast.open(prompt="x" * 3_000)
    waiting.leave()
    cast.open(prompt="x" * 6_000)
    cast.close()


def test_used_up_budget_makes_wait_and_then_refuses_with_its_name(broker, cast):
    cast.engine(capacity=100)
    streams = [cast.open() for _ in range(8 + 4)]
    assert broker.active_streams() == 8
    assert broker.shm_used_bytes() == broker.shm_budget_bytes() == 8 * STREAM_BYTES
    with pytest.raises(CapacityExhausted, match=r"all 8 streams .*--shm-bytes"):
        cast.open()
    assert len(streams) == 12


def test_file_system_without_room_for_one_stream_refuses_with_the_numbers(cast, shm, monkeypatch):
    engine = cast.engine()
    space = [Space(64 << 20, STREAM_BYTES - 1)]
    monkeypatch.setattr(shm, "space", lambda: space[0])
    with pytest.raises(CapacityExhausted, match=rf"{STREAM_BYTES - 1} of {64 << 20} bytes free"):
        cast.open()
    assert engine.submitted == []
    space[0] = Space(64 << 20, STREAM_BYTES)
    cast.open()
    assert len(engine.submitted) == 1


def test_file_system_that_fills_while_a_request_waits_fails_it_with_the_numbers(
    cast, shm, monkeypatch
):
    engine = cast.engine(capacity=1)
    first, second = cast.open(), cast.open()
    monkeypatch.setattr(shm, "space", lambda: Space(64 << 20, 0))
    engine.finish(first)
    assert isinstance(failure(second.poll()), CapacityExhausted)
    assert len(engine.submitted) == 1


def test_small_file_system_lowers_the_number_of_streams(shm, config, metrics, clock, monkeypatch):
    monkeypatch.setattr(shm, "space", lambda: Space(3 * STREAM_BYTES, 3 * STREAM_BYTES))
    broker = Broker(config, shm, "/b", metrics, clock)
    assert broker.shm_budget_bytes() == 3 * STREAM_BYTES


def test_drain_refuses_new_streams_and_lets_open_and_waiting_ones_finish(broker, cast):
    engine = cast.engine(capacity=1)
    first, second = cast.open(), cast.open()
    broker.drain()
    with pytest.raises(Draining):
        cast.open()
    with pytest.raises(Draining):
        cast.engine()
    engine.finish(first)
    engine.finish(second)
    assert isinstance(first.poll(), Finished)
    assert isinstance(second.poll(), Finished)


# --- The queue ----------------------------------------------------------------------------


def test_waiting_stream_is_submitted_as_soon_as_a_slot_is_free(cast):
    engine = cast.engine(capacity=1)
    first, second = cast.open(), cast.open()
    assert second.stream.state is State.QUEUED
    assert second.poll() is None
    engine.finish(first)
    assert second.stream.state is State.SUBMITTED
    assert engine.submitted[-1].stream_id == second.stream_id


def test_priority_then_age_decides_who_is_next(cast):
    engine = cast.engine(capacity=1)
    running = cast.open()
    late, early, urgent = cast.open(priority=1), cast.open(), cast.open(priority=-1)
    for stream in [running, urgent, early, late]:
        assert engine.submitted[-1].stream_id == stream.stream_id
        engine.finish(stream)


def test_leaving_the_queue_touches_no_engine(broker, cast):
    engine = cast.engine(capacity=1)
    running, waiting = cast.open(), cast.open()
    waiting.leave()
    waiting.leave()
    assert broker.queue_length() == 0
    engine.finish(running)
    assert len(engine.submitted) == 1
    assert engine.cancelled == []


def test_deadline_that_passes_in_the_queue_fails_the_stream_at_that_moment(broker, cast, clock):
    cast.engine(capacity=1)
    cast.open()
    stream = cast.open(timeout_s=2)
    clock.jump_s(2 - 1e-9)
    broker.sweep()
    assert stream.poll() is None
    clock.jump_s(1e-9)
    woken = []
    stream.waker = lambda: woken.append(1)
    broker.sweep()
    assert woken
    error = failure(stream.poll())
    assert isinstance(error, DeadlinePassed)
    assert "2.000 s" in str(error)
    assert stream.poll() is None


def test_late_stream_is_not_submitted_even_if_a_slot_frees_before_the_sweep(cast, clock):
    engine = cast.engine(capacity=1)
    first, second = cast.open(), cast.open(timeout_s=1)
    clock.jump_s(1)
    engine.finish(first)
    assert isinstance(failure(second.poll()), DeadlinePassed)
    assert len(engine.submitted) == 1


@pytest.mark.parametrize("timeout_s", [0, -1])
def test_deadline_that_has_passed_already_is_refused(cast, timeout_s):
    cast.engine()
    with pytest.raises(DeadlinePassed):
        cast.open(timeout_s=timeout_s)


def test_engine_is_told_how_long_the_client_will_still_wait(cast, clock):
    engine = cast.engine(capacity=1)
    first = cast.open(timeout_s=float("inf"))
    cast.open(timeout_s=3)
    clock.jump_s(1)
    engine.finish(first)
    assert [each.timeout_ms for each in engine.submitted] == [None, 2000]


def test_least_loaded_engine_of_the_model_gets_the_stream(cast):
    small, large = cast.engine(capacity=2), cast.engine(capacity=4)
    other = cast.engine("other", capacity=50)
    for _ in range(6):
        cast.open()
    assert (len(small.submitted), len(large.submitted), len(other.submitted)) == (2, 4, 0)
    cast.open()
    assert (len(small.submitted), len(large.submitted)) == (2, 4)


def test_slots_of_running_streams_are_unique(cast):
    engine = cast.engine(capacity=3)
    streams = [cast.open() for _ in range(3)]
    engine.finish(streams[1])
    cast.open()
    assert [each.slot for each in engine.submitted] == [0, 1, 2, 1]


def test_budget_that_frees_lets_the_next_one_in(broker, cast):
    engine = cast.engine(capacity=100)
    streams = [cast.open() for _ in range(9)]
    engine.finish(streams[0])
    assert streams[8].stream.state is State.QUEUED  # the file is still there
    read_all(streams[0])
    streams[0].leave()
    assert streams[8].stream.state is State.SUBMITTED
    assert broker.shm_used_bytes() == 8 * STREAM_BYTES


def test_models_are_listed_by_name_with_what_they_can_take(broker, cast):
    cast.engine("b", "a", capacity=2)
    cast.engine("b", capacity=3)
    cast.open("b")
    rows = [(m.name, m.engines, m.capacity, m.active) for m in broker.models()]
    assert rows == [("a", 1, 2, 0), ("b", 2, 5, 1)]


# --- Clients that leave -------------------------------------------------------------------


def test_leaving_before_the_first_token_cancels_once_and_frees_all(broker, cast, shm):
    engine = cast.engine(capacity=1)
    stream = cast.open()
    stream.leave()
    stream.leave()
    assert engine.cancelled == [stream.stream_id]
    assert stream.poll() is None
    waiting = cast.open()
    assert waiting.stream.state is State.QUEUED  # the slot is taken until the engine has stopped
    engine.obey_cancels()
    assert stream.poll() is None  # the engine's answer to the cancel is nobody's news
    assert waiting.stream.state is State.SUBMITTED
    engine.finish(waiting)
    waiting.leave()
    assert streams_in(shm) == []
    assert_at_rest(broker)


def test_leaving_in_the_middle_cancels_once_and_the_file_goes(broker, cast, shm):
    engine = cast.engine()
    stream = cast.open()
    engine.write(stream, b"a")
    read_all(stream)
    stream.leave()
    assert engine.cancelled == [stream.stream_id]
    assert len(streams_in(shm)) == 1
    engine.obey_cancels()
    assert streams_in(shm) == []
    assert engine.cancelled == [stream.stream_id]
    assert_at_rest(broker)


def test_leaving_before_a_log_that_the_engine_then_begins_still_frees_all(broker, cast, shm):
    engine = cast.engine()
    stream = cast.open()
    stream.leave()
    engine.write(stream, b"the cancel was on its way")
    engine.obey_cancels()
    assert streams_in(shm) == []
    assert_at_rest(broker)


@pytest.mark.parametrize("read_first", [True, False])
def test_normal_end_is_never_cancelled_even_if_nobody_has_read_it(broker, cast, read_first):
    engine = cast.engine()
    stream = cast.open()
    engine.write(stream, b"a")
    engine.writers[stream.stream_id].finish(End(reason=1))  # and no bell
    if read_first:
        read_all(stream)
    stream.leave()
    assert engine.cancelled == []
    assert_at_rest(broker)


def test_end_before_the_log_was_ever_seen_is_not_cancelled(broker, cast):
    engine = cast.engine()
    stream = cast.open()
    engine.begin(stream.stream_id).finish(End(reason=1))
    stream.leave()
    assert engine.cancelled == []
    assert_at_rest(broker)


def test_file_of_a_writer_that_lingers_goes_when_the_lease_does(broker, cast, shm, clock):
    engine = cast.engine()
    stream = cast.open()
    engine.write(stream, b"a")
    writer = engine.writers[stream.stream_id]
    stream.leave()
    writer.close = lambda: None  # the final state shows a moment before the lease drops
    engine.obey_cancels()
    assert stream.stream.state is State.GONE
    assert len(streams_in(shm)) == 1
    assert broker.busy
    del writer.close
    writer.close()
    broker.sweep()
    assert len(streams_in(shm)) == 1  # not asked again at once
    clock.jump_s(0.02)
    broker.sweep()
    assert streams_in(shm) == []
    assert_at_rest(broker)


def test_file_that_the_sidecar_may_not_unlink_is_released_to_the_engine(
    broker, cast, shm, monkeypatch
):
    def denied(name: str) -> None:
        raise PermissionError(1, "sticky", name)

    engine = cast.engine()
    stream = cast.open()
    engine.finish(stream)
    read_all(stream)
    monkeypatch.setattr(shm, "unlink", denied)
    stream.leave()
    assert engine.released == [stream.stream_id]
    assert_at_rest(broker)
