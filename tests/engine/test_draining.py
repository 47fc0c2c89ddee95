"""A sidecar drains and its successor comes up: two attachments side by side."""

from __future__ import annotations

import logging
import threading
import time

import grpc
import pytest

from rrpa_sidecar.engine import AttachRefused, Code, Engine, Job, JobCancelled
from rrpa_sidecar.engine.bell import StepBell
from rrpa_sidecar.engine.inbox import Inbox
from rrpa_sidecar.engine.roster import Roster
from tests.engine.conftest import AttachTo
from tests.engine.fake_sidecar import Attachment, FakeSidecar, eventually
from tests.engine.test_sidecar_lost import log_file, mapped, table_of, words


def running(sidecar: FakeSidecar, engine: Engine, attachment: Attachment, slot: int) -> Job:
    sidecar.submit(attachment, slot=slot)
    job = next(engine.jobs())
    job.write(b"a")
    return job


def hand_over(sidecar: FakeSidecar, engine: Engine, old: Attachment) -> Attachment:
    sidecar.drain(old)
    eventually(lambda: not engine.serving)
    sidecar.come_back()
    new = sidecar.attached()
    eventually(lambda: engine.serving)
    return new


def engine_threads() -> int:
    return sum(each.name == "rrpa-engine" for each in threading.enumerate())


def test_jobs_of_the_draining_sidecar_go_on_there_and_new_ones_come_from_its_successor(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar)
    old = sidecar.attached()
    job = running(sidecar, engine, old, slot=1)
    new = hand_over(sidecar, engine, old)
    assert new.hello.announced == 0, "it still belongs to the one that drains"
    assert new.hello.table_id != old.hello.table_id
    job.write(b"b")
    assert words(sidecar, old)(1) == (2, False)
    other = running(sidecar, engine, new, slot=1)
    assert words(sidecar, new)(1) == (1, False)
    assert words(sidecar, old)(1) == (2, False)
    sidecar.cancel(new, job.stream_id)
    sidecar.cancel(new, other.stream_id)
    eventually(lambda: other.cancelled)
    assert not job.cancelled, "only its own sidecar cancels a job"
    sidecar.cancel(old, job.stream_id)
    eventually(lambda: job.cancelled)


def test_refusal_of_a_draining_sidecars_job_is_said_to_that_sidecar(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar)
    old = sidecar.attached()
    sidecar.submit(old)
    job = next(engine.jobs())
    hand_over(sidecar, engine, old)
    job.fail(Code.INVALID_ARGUMENT, "no")
    assert old.rejected.get(timeout=10).stream_id == job.stream_id


def test_what_is_left_when_the_draining_sidecar_ends_is_announced_to_its_successor(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar)
    old = sidecar.attached()
    job, done = (running(sidecar, engine, old, slot) for slot in (1, 2))
    new = hand_over(sidecar, engine, old)
    done.finish()
    old.end()
    announced = new.next_announced()
    assert (announced.stream_id, announced.begun) == (job.stream_id, True)
    assert new.announced.empty()
    assert table_of(old) in sidecar.directory.names()
    sidecar.adopt(new, job.stream_id, slot=0)
    eventually(lambda: not mapped(old))
    assert table_of(old) not in sidecar.directory.names()
    assert engine.serving
    job.write(b"b")
    assert words(sidecar, new)(0) == (2, False)
    job.finish()
    assert sidecar.answer(job.stream_id)[0] == b"ab"


def test_draining_sidecar_that_ends_before_its_successor_is_there_loses_nothing(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar)
    old = sidecar.attached()
    job = running(sidecar, engine, old, slot=1)
    sidecar.drain(old)
    old.end(grpc.StatusCode.UNAVAILABLE, "bye")
    eventually(lambda: job.connection.lost)
    job.write(b"b")
    sidecar.come_back()
    new = sidecar.attached()
    assert (new.hello.announced, new.next_announced().stream_id) == (1, job.stream_id)
    job.finish()
    assert sidecar.answer(job.stream_id)[0] == b"ab"


def test_several_sidecars_may_drain_at_once_each_with_its_jobs(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar, capacity=4)
    attachments = [sidecar.attached()]
    jobs = [running(sidecar, engine, attachments[0], slot=0)]
    for slot in (1, 2):
        attachments.append(hand_over(sidecar, engine, attachments[-1]))
        jobs.append(running(sidecar, engine, attachments[-1], slot))
    assert engine_threads() == 3
    for slot, (attachment, job) in enumerate(zip(attachments, jobs, strict=True)):
        job.write(b"b")
        assert words(sidecar, attachment)(slot) == (2, False)
    first, second, third = attachments
    second.end()
    assert third.next_announced().stream_id == jobs[1].stream_id
    first.end()
    assert third.next_announced().stream_id == jobs[0].stream_id
    eventually(lambda: engine_threads() == 1)
    last = sidecar.restart()
    assert {last.next_announced().stream_id for _ in jobs} == {job.stream_id for job in jobs}
    for job in jobs:
        job.finish()
        assert sidecar.answer(job.stream_id)[0] == b"ab"


def test_what_a_draining_sidecar_leaves_waits_for_one_that_does_not_drain(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar)
    first = sidecar.attached()
    job = running(sidecar, engine, first, slot=0)
    second = hand_over(sidecar, engine, first)
    sidecar.drain(second)
    eventually(lambda: not engine.serving)
    first.end()
    eventually(lambda: job.connection.lost)
    sidecar.come_back()
    third = sidecar.attached()
    assert (third.hello.announced, third.next_announced().stream_id) == (1, job.stream_id)
    assert second.announced.empty()


def test_no_attachment_begins_after_the_engine_closed() -> None:
    roster = Roster(Inbox(capacity=1))
    assert roster.close() == []
    assert roster.attach(lambda _: pytest.fail("dialled")) is None


def test_job_announced_to_a_sidecar_that_then_drains_is_not_announced_beside_it(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar)
    job = running(sidecar, engine, sidecar.attached(), slot=0)
    second = sidecar.restart()
    third = hand_over(sidecar, engine, second)
    assert third.hello.announced == 0
    sidecar.adopt(second, second.next_announced().stream_id, slot=3)
    eventually(lambda: not mapped(second) or words(sidecar, second)(3) == (0, False))
    job.write(b"b")
    eventually(lambda: job.write(b"b") or words(sidecar, second)(3)[0] > 0)
    second.end()
    assert third.next_announced().stream_id == job.stream_id


def test_draining_said_twice_changes_nothing(sidecar: FakeSidecar, attach_to: AttachTo) -> None:
    engine = attach_to(sidecar)
    old = sidecar.attached()
    new = hand_over(sidecar, engine, old)
    old.say(draining={})
    old.say(draining={})
    job = running(sidecar, engine, new, slot=0)
    assert engine.serving
    assert engine_threads() == 2
    job.finish()


def test_draining_sidecar_without_a_successor_keeps_its_jobs_and_the_engine_can_stop(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar)
    old = sidecar.attached()
    job, untaken = running(sidecar, engine, old, slot=0), sidecar.submit(old, slot=1)[0]
    sidecar.drain(old)
    time.sleep(0.2)
    assert not engine.serving
    job.write(b"b")
    assert not job.cancelled
    began = time.monotonic()
    engine.close()
    assert time.monotonic() - began < 2
    rejected = old.rejected.get(timeout=10)
    assert (rejected.stream_id, rejected.code) == (untaken, Code.UNAVAILABLE)
    eventually(lambda: old.ended)
    assert engine_threads() == 0
    assert sidecar.directory.names() == []


def test_closing_engine_hangs_up_on_both_and_lets_the_draining_one_read(
    sidecar: FakeSidecar, attach_to: AttachTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rrpa_sidecar.engine.engine.CLOSE_GRACE_S", 0.5)
    engine = attach_to(sidecar)
    old = sidecar.attached()
    job = running(sidecar, engine, old, slot=0)
    reader = sidecar.log(job.stream_id)
    sidecar.drain(old)
    eventually(lambda: not engine.serving)
    closing = threading.Thread(target=engine.close)
    closing.start()
    eventually(lambda: reader.progress()[1] is not None)
    time.sleep(0.1)
    assert log_file(job) in sidecar.directory.names(), "the draining sidecar may still read it"
    closing.join(5)
    eventually(lambda: old.ended)
    assert sidecar.directory.names() == []
    reader.close()


def test_refusal_by_the_successor_waits_until_the_draining_sidecar_has_delivered(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar)
    old = sidecar.attached()
    whole, cut = (running(sidecar, engine, old, slot) for slot in (0, 1))
    sidecar.drain(old)
    sidecar.refuse = (grpc.StatusCode.INVALID_ARGUMENT, "no such thing")
    sidecar.come_back()
    eventually(lambda: sidecar.refusals)
    whole.write(b"b")
    whole.finish()
    assert engine.poll() == []
    old.end()
    eventually(lambda: cut.cancelled)
    with pytest.raises(AttachRefused, match="no such thing"):
        engine.wait()
    with pytest.raises(JobCancelled):
        cut.write(b"b")
    assert sidecar.answer(whole.stream_id)[1].code == Code.OK
    assert sidecar.answer(cut.stream_id)[1].code == Code.UNAVAILABLE


def test_hand_over_is_one_line_each_way(
    sidecar: FakeSidecar, attach_to: AttachTo, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rrpa_sidecar.engine")
    engine = attach_to(sidecar)
    old = sidecar.attached()
    eventually(lambda: engine.serving)
    caplog.clear()
    sidecar.drain(old)
    time.sleep(0.2)
    sidecar.come_back()
    sidecar.attached()
    eventually(lambda: engine.serving)
    old.end()
    eventually(lambda: engine_threads() == 1)
    lines = [each.getMessage() for each in caplog.records if each.name.startswith("rrpa")]
    assert [line.split(" ")[0] for line in lines] == ["the", "attached"]
    assert "draining" in lines[0]


def test_bells_of_both_sidecars_ring_until_one_is_gone() -> None:
    rung: list[str] = []

    class Ringer:
        def __init__(self, name: str) -> None:
            self.name = name

        def ring(self) -> None:
            rung.append(self.name)

        def close(self) -> None:
            rung.append(f"{self.name} closed")

    bell, old, new = StepBell(), Ringer("old"), Ringer("new")
    for each in (old, new):
        bell.add(each)  # type: ignore[arg-type]
    with bell:
        bell.ring()
        bell.ring()
        assert rung == []
    assert rung == ["old", "new"]
    bell.remove(old)  # type: ignore[arg-type]
    bell.ring()
    assert rung[2:] == ["old closed", "new"]
