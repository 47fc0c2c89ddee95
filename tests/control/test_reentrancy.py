"""Calling back from within: whoever is told of one stream may leave others at once.

A front end does so when what it was told breaks the connection that all of them share.
"""

from __future__ import annotations

import secrets

from rrpa_sidecar.control import readers
from rrpa_sidecar.control.broker import Labels, Reading
from rrpa_sidecar.control.lifecycle import State
from rrpa_sidecar.errors import CorruptLog, DeadlinePassed
from rrpa_sidecar.pb.engine_pb2 import OpenStream
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.writer import LogWriter
from rrpa_sidecar.stream import seek
from tests.control.engine import STOP, STREAM_BYTES, Cast, FakeEngine, failure, read_all

LABELS = Labels("again", "s")


def share_a_connection(*readings: Reading) -> None:
    """Have the first that is woken leave all of them."""

    def broken() -> None:
        for reading in readings:
            reading.leave()

    for reading in readings:
        reading.waker = broken


def announced(stream_id: str) -> OpenStream:
    return OpenStream(stream_id=stream_id, model="test", begun=True)


def begun(cast: Cast, engine: FakeEngine, model: str = "test") -> Reading:
    stream = cast.open(model)
    engine.write(stream, b"a")
    assert read_all(stream) == (b"a", None)
    return stream


def states(*readings: Reading) -> set[State]:
    return {reading.stream.state for reading in readings}


def test_readers_that_wait_for_announcements_until_their_connection_breaks(broker, clock, config):
    waiting = [broker.resume(secrets.token_hex(16), 0, LABELS) for _ in range(3)]
    share_a_connection(*waiting)
    clock.jump_s(config.resume_window_s)
    broker.sweep()
    assert states(*waiting) == {State.GONE}


def test_slow_reader_of_a_found_log_leaves_when_its_writer_is_gone(broker, shm, clock):
    stream_id = secrets.token_hex(16)
    writer = LogWriter.create(shm, stream_id, stream_bytes=STREAM_BYTES, clock=clock)
    writer.write(b"some bytes")
    reading = broker.resume(stream_id, 0, LABELS)
    broker.sweep()
    share_a_connection(reading)
    writer.close()
    broker.sweep()
    assert states(reading) == {State.GONE}


def test_reader_that_is_left_before_its_place_is_found_is_sought_for_no_more(
    broker, cast, shm, clock, monkeypatch
):
    monkeypatch.setattr(readers, "SEEK_BYTES", 2)
    monkeypatch.setattr(seek, "CHUNK_BYTES", 2)
    engine, stream_id = cast.make(), secrets.token_hex(16)
    first, second = (broker.resume(stream_id, offset, LABELS) for offset in (0, 50))
    share_a_connection(first, second)
    writer = LogWriter.create(shm, stream_id, stream_bytes=STREAM_BYTES, clock=clock)
    engine.writers[stream_id] = writer
    writer.write(b"a" * 100)
    engine.attach(announced(stream_id))
    assert states(first) == {State.LEAVING}
    assert not broker.seeking


def test_client_is_told_that_it_waited_too_long_and_leaves_while_an_engine_is_detached(
    broker, cast, clock
):
    engine = cast.engine(capacity=2)
    first, second = begun(cast, engine), begun(cast, engine)
    cast.engine(capacity=8, name="other")
    others = [cast.open() for _ in range(6)]  # the budget has 8
    late = cast.open(timeout_s=1.0)
    first.leave()
    told = []

    def refused() -> None:
        told.append(failure(late.poll()))
        late.leave()
        second.leave()

    late.waker = refused
    clock.jump_s(1.0)
    engine.writers[first.stream_id].close()
    engine.writers[second.stream_id].finish(End(reason=STOP))  # and no bell
    broker.detach(engine.engine, "its connection broke")
    assert [type(error) for error in told] == [DeadlinePassed]
    assert states(first, second, late) == {State.GONE}
    assert states(*others) == {State.SUBMITTED}


def last_of_a_quarantined(cast: Cast) -> tuple[FakeEngine, Reading]:
    """Return an engine that is let go when its one stream is over, and that stream, which is."""
    engine = cast.engine("two")
    broken, last = begun(cast, engine, "two"), begun(cast, engine, "two")
    engine.writers[broken.stream_id]._words[layout.STATE_OFFSET // 8] = 7
    assert broken.poll() is not None
    engine.writers[broken.stream_id].close()
    broken.leave()
    engine.broker.sweep()
    assert engine.engine.held() == [last.stream]
    engine.writers[last.stream_id].finish(End(reason=STOP))  # and no bell
    return engine, last


def test_engine_is_let_go_while_the_table_of_another_one_is_read(broker, cast, caplog):
    engine = cast.engine("one")
    stream = begun(cast, engine, "one")
    other, last = last_of_a_quarantined(cast)
    share_a_connection(stream, last)
    caplog.clear()
    engine.write(stream, b"b")
    assert "corrupt" not in caplog.text
    assert [type(why) for why in other.closed] == [CorruptLog]
    assert (engine.engine.attached, other.engine.attached) == (True, False)


def test_engine_is_let_go_while_another_one_is_found_dead(broker, cast):
    engine = cast.engine("one")
    stream = begun(cast, engine, "one")
    other, last = last_of_a_quarantined(cast)
    share_a_connection(stream, last)
    engine.writers[stream.stream_id].close()
    engine.table.close()
    broker._attachments.detach_dead()
    assert (engine.engine.attached, other.engine.attached) == (False, False)
    assert states(stream, last) == {State.GONE}


def test_announced_stream_that_was_to_stop_is_left_while_another_one_is_looked_at(
    broker, cast, shm, clock
):
    engine = cast.make(capacity=4)
    streams = []
    for _ in range(2):
        stream_id = secrets.token_hex(16)
        writer = LogWriter.create(shm, stream_id, stream_bytes=STREAM_BYTES, clock=clock)
        engine.writers[stream_id] = writer
        streams.append(broker.resume(stream_id, 0, LABELS))
        broker.cancel_stream(stream_id)
    share_a_connection(*streams)
    engine.writers[streams[0].stream_id].finish(End(reason=STOP))
    engine.attach(*(announced(stream.stream_id) for stream in streams))
    assert states(streams[0]) == {State.GONE}
    assert states(streams[1]) == {State.LEAVING}
