"""A broker looks for files that nobody owns, keeps them for readers, and removes them in time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rrpa_sidecar.control.broker import Broker, Labels
from rrpa_sidecar.metrics import Metrics
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import Space
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.table import TableWriter
from rrpa_sidecar.shm.writer import LogWriter
from rrpa_sidecar.stream.events import Finished
from tests.control.engine import STREAM_BYTES, FakeEngine, assert_at_rest, read_all

LABELS = Labels("later", "s")
KEPT_BYTES = 4096 + 4096
"""What a log of a few bytes takes."""


def leave_behind(shm: Any, stream_id: str, data: bytes = b"abc", end: End | None = None) -> str:
    """Do as a writer does that ends its log, or is killed; return the file's name."""
    made = LogWriter.create(shm, stream_id, stream_bytes=STREAM_BYTES)
    made.write(data)
    if end is not None:
        made.finish(end)
    made.close()
    return layout.log_name(stream_id)


def test_first_sweep_finds_what_was_left_behind_and_its_time_begins_then(
    broker, shm, clock, config, metrics
):
    name = leave_behind(shm, "a" * 32)
    TableWriter.create(shm, "b" * 32, 2, bytes(16)).close()
    clock.jump_s(1000)  # nobody knows how long it has been there
    assert broker.rest_s == 0
    broker.sweep()
    assert shm.names() == [name]
    assert broker.shm_used_bytes() == KEPT_BYTES
    assert not broker.busy
    clock.jump_s(config.shm_timeout_s - 0.001)
    broker.sweep()
    assert shm.names() == [name]
    clock.jump_s(0.001)
    broker.sweep()
    assert shm.names() == []
    assert_at_rest(broker)
    assert metrics.totals.reclaimed == {"log": 1, "table": 1, "temporary": 0}


def test_idle_broker_rests_from_one_look_to_the_next(broker, config, clock):
    broker.sweep()
    assert broker.rest_s == config.shm_timeout_s
    clock.jump_s(config.shm_timeout_s - 1)
    assert broker.rest_s == 1
    broker.sweep()
    assert broker.rest_s == 1
    clock.jump_s(2)
    assert broker.rest_s == 0


def test_look_after_the_first_finds_what_came_since(broker, shm, config, clock):
    broker.sweep()
    name = leave_behind(shm, "a" * 32)
    clock.jump_s(config.shm_timeout_s)
    broker.sweep()
    assert shm.names() == [name]
    clock.jump_s(config.shm_timeout_s)
    broker.sweep()
    assert shm.names() == []


@pytest.mark.parametrize("when", ["found before", "not found yet"])
def test_reader_who_comes_in_time_gets_all_of_it_and_the_time_begins_again_when_he_leaves(
    broker, shm, config, clock, when
):
    name = leave_behind(shm, "a" * 32, "äbc".encode(), End(reason=1))
    if when == "found before":
        broker.sweep()
    clock.jump_s(config.shm_timeout_s - 1)
    reading = broker.resume("a" * 32, 2, LABELS)
    clock.jump_s(config.shm_timeout_s)
    broker.sweep()
    got, last = read_all(reading)
    assert (got, type(last)) == (b"bc", Finished)
    assert shm.names() == [name]
    reading.leave()
    clock.jump_s(config.shm_timeout_s - 0.001)
    broker.sweep()
    assert shm.names() == [name]
    clock.jump_s(0.001)
    broker.sweep()
    assert shm.names() == []
    assert_at_rest(broker)


def test_found_files_give_way_to_new_streams(config, shm, metrics, clock, cast):
    tight = Broker(replace(config, shm_bytes=2 * STREAM_BYTES), shm, "/bell", metrics, clock)
    engine = FakeEngine(tight, shm, clock, ("test",), 2)
    old, new = leave_behind(shm, "a" * 32), leave_behind(shm, "b" * 32)
    tight.sweep()
    engine.attach()
    cast._broker = tight
    first = cast.open()
    assert (len(engine.submitted), [n in shm.names() for n in (old, new)]) == (1, [True, True])
    second = cast.open()
    assert len(engine.submitted) == 2
    assert old not in shm.names()
    for each in (first, second):
        engine.finish(each)
        each.leave()
    engine.tidy()


@pytest.mark.parametrize("attached", [False, True])
def test_found_files_give_way_to_the_table_of_an_engine_that_cannot_attach(
    broker, shm, cast, monkeypatch, attached
):
    """No request comes before there is an engine, so none would make them give way."""
    if attached:
        cast.engine()
    names = [leave_behind(shm, "a" * 32), leave_behind(shm, "b" * 32)]

    def space() -> Space:
        full = all(name in shm.names() for name in names)
        return Space(10 * STREAM_BYTES, STREAM_BYTES - full)

    monkeypatch.setattr(shm, "space", space)
    for _ in range(2):
        broker.sweep()
    assert sum(name in shm.names() for name in names) == (2 if attached else 1)


def ended_and_left(cast: Any, broker: Broker) -> str:
    """Let a resumable stream be over; return its id."""
    engine = cast.engine()
    reading = cast.open(resumable=True)
    engine.write(reading, b"abc")
    engine.finish(reading)
    read_all(reading)
    reading.leave()
    return str(reading.stream_id)


def test_file_that_is_kept_here_is_found_by_no_look_and_removed_at_its_own_time(
    broker, cast, shm, config, clock, metrics
):
    broker.sweep()
    clock.jump_s(10)
    name = layout.log_name(ended_and_left(cast, broker))
    clock.jump_s(config.shm_timeout_s - 10)
    broker.sweep()  # a look
    assert broker.shm_used_bytes() == KEPT_BYTES
    assert broker.rest_s == 10  # not the next look
    clock.jump_s(10)
    broker.sweep()
    assert name not in shm.names()
    assert_at_rest(broker)
    assert metrics.totals.reclaimed["log"] == 0  # it was ours all the time


def test_file_that_is_about_to_be_removed_here_is_found_by_no_look(
    broker, cast, config, clock, shm
):
    broker.sweep()
    engine = cast.engine()
    reading = cast.open()
    engine.write(reading, b"abc")
    reading.leave()
    engine.table.close()
    broker.detach(engine.engine, "its connection broke")
    for _ in range(int(config.shm_timeout_s) - 1):
        clock.jump_s(1)
        broker.sweep()
    engine.writers[reading.stream_id].close()  # between two of ever rarer tries
    clock.jump_s(1)
    broker.sweep()
    assert layout.log_name(reading.stream_id) in shm.names()
    assert len(broker._kept) == 0
    clock.jump_s(5)
    broker.sweep()
    assert shm.names() == []
    assert_at_rest(broker)


def test_found_file_that_somebody_else_removed_is_not_counted_and_gives_its_bytes_back(
    broker, shm, config, clock, metrics
):
    name = leave_behind(shm, "a" * 32)
    broker.sweep()
    shm.unlink(name)
    clock.jump_s(config.shm_timeout_s)
    broker.sweep()
    assert metrics.totals.reclaimed["log"] == 0
    assert_at_rest(broker)


def test_files_of_streams_that_live_here_are_not_orphans(broker, cast, shm, config, clock):
    """Also when their writers have gone and nobody has read their ends yet."""
    engine = cast.engine()
    reading = cast.open()
    engine.write(reading, b"abc")
    engine.finish(reading)
    for _ in range(3):
        clock.jump_s(config.shm_timeout_s)
        broker.sweep()
    assert broker.shm_used_bytes() == STREAM_BYTES
    got, last = read_all(reading)
    assert (got, type(last)) == (b"abc", Finished)
    reading.leave()
    assert layout.log_name(reading.stream_id) not in shm.names()
    assert_at_rest(broker)


def test_two_sidecars_in_one_directory_leave_each_others_live_files_alone(
    broker, cast, config, shm, clock
):
    engine = cast.engine()
    reading = cast.open()
    engine.write(reading, b"abc")
    other = Broker(config, shm, "/tmp/other", Metrics(clock), clock)
    for _ in range(3):
        clock.jump_s(config.shm_timeout_s)
        other.sweep()
        broker.sweep()
    assert other.shm_used_bytes() == 0
    engine.finish(reading)
    got, last = read_all(reading)
    assert (got, type(last)) == (b"abc", Finished)
    reading.leave()
    clock.jump_s(1)
    broker.sweep()
    assert_at_rest(broker)


def test_finished_file_of_another_sidecar_gets_its_time_and_its_readers_keep_it(
    broker, cast, config, shm, clock
):
    engine = cast.engine()
    reading = cast.open()
    engine.write(reading, b"abc")
    engine.finish(reading)
    other = Broker(config, shm, "/tmp/other", Metrics(clock), clock)
    other.sweep()
    clock.jump_s(config.shm_timeout_s)
    other.sweep()
    assert layout.log_name(reading.stream_id) not in shm.names()
    assert_at_rest(other)
    got, last = read_all(reading)
    assert (got, type(last)) == (b"abc", Finished)
    reading.leave()
    assert_at_rest(broker)


def test_foreign_files_are_neither_charged_nor_kept_nor_removed(broker, shm, config, clock):
    foreign = [Path(shm.path, "rrpa_" + "a" * 32), Path(shm.path, "rrpa_table_" + "b" * 32)]
    for path in foreign:
        path.write_bytes(b"not yours")
    for _ in range(3):
        broker.sweep()
        clock.jump_s(config.shm_timeout_s)
    assert all(path.exists() for path in foreign)
    assert_at_rest(broker)
