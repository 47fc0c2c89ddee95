"""The sidecar dies, restarts, changes: jobs go on, and the next one is told of them."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import grpc
import pytest

from rrpa_sidecar.engine import AttachRefused, Code, Engine, Job, JobCancelled
from rrpa_sidecar.pb import engine_pb2, rrpa_pb2
from tests.engine.conftest import AttachTo
from tests.engine.fake_sidecar import Attachment, FakeSidecar, eventually
from tests.shm.support import exit_of, fork

RESTARTS = 20


def lose(sidecar: FakeSidecar, engine: Engine) -> None:
    eventually(lambda: engine.serving)  # or it would hear of the end before it was attached
    sidecar.stop()
    eventually(lambda: not engine.serving)


def table_of(attachment: Attachment) -> str:
    return f"rrpa_table_{attachment.hello.table_id}"


def mapped(attachment: Attachment) -> bool:
    """Whether this process still maps the table of `attachment`: its lease is held then."""
    return attachment.hello.table_id in Path("/proc/self/maps").read_text()


def words(sidecar: FakeSidecar, attachment: Attachment) -> Callable[[int], tuple[int, bool]]:
    """Return what reads a slot's (committed bytes, ended) from the table of `attachment`."""
    table = sidecar.table(attachment)

    def word(slot: int) -> tuple[int, bool]:
        table.poll()
        return table.word(slot)

    return word


def log_file(job: Job) -> str:
    return f"rrpa_{job.stream_id}"


def test_running_job_goes_on_is_announced_and_moves_to_the_new_table(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar)
    first = sidecar.attached()
    request = rrpa_pb2.CreateStreamRequest(model="m").SerializeToString()
    sidecar.submit_raw(first, request, slot=2, request_id="label", resumable=True)
    job = next(engine.jobs())
    job.write(b"before ")
    lose(sidecar, engine)
    job.write(b"meanwhile ")
    assert not job.cancelled
    sidecar.come_back()
    second = sidecar.attached()
    assert second.hello.table_id != first.hello.table_id
    assert second.hello.table_nonce != first.hello.table_nonce
    assert second.hello.announced == 1
    assert second.next_announced() == engine_pb2.OpenStream(
        stream_id=job.stream_id, model="m", resumable=True, begun=True, request_id="label"
    )
    word = words(sidecar, second)
    eventually(lambda: engine.serving)
    job.write(b"unadopted ")
    assert sidecar.bell.drain()
    assert [word(slot) for slot in range(4)] == [(0, False)] * 4
    assert table_of(first) in sidecar.directory.names()
    sidecar.adopt(second, job.stream_id, slot=3)
    eventually(sidecar.bell.drain)  # so that what was written meanwhile is looked for
    assert not mapped(first)
    assert sidecar.directory.names() == sorted([log_file(job), table_of(second)])
    job.write(b"after")
    assert word(3) == (len(b"before meanwhile unadopted after"), False)
    job.finish("length")
    assert word(3)[1]
    data, end = sidecar.answer(job.stream_id)
    assert (data, end.code) == (b"before meanwhile unadopted after", Code.OK)
    assert end.reason == rrpa_pb2.FINISH_REASON_LENGTH


def test_job_without_a_slot_goes_on_and_touches_no_word(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar)
    first = sidecar.attached()
    sidecar.submit(first)
    job = next(engine.jobs())
    job.write(b"a")
    second = sidecar.restart()
    sidecar.adopt(second, second.next_announced().stream_id)
    eventually(lambda: not mapped(first))
    job.write(b"b")
    job.finish()
    word = words(sidecar, second)
    assert [word(slot) for slot in range(4)] == [(0, False)] * 4
    assert sidecar.answer(job.stream_id)[0] == b"ab"


def test_table_of_a_lost_sidecar_says_that_the_engine_lives_until_its_last_job_is_over(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar)
    first = sidecar.attached()
    for slot in range(3):
        sidecar.submit(first, slot=slot)
    jobs = [next(engine.jobs()) for _ in range(3)]
    for job in jobs[:2]:
        job.write(b"x")
    lose(sidecar, engine)
    table = sidecar.table(first)
    for job in jobs:
        assert not table.writer_gone()
        job.fail(Code.INTERNAL, "x")
    assert table.writer_gone()
    assert table_of(first) not in sidecar.directory.names()
    assert not mapped(first)
    table.close()


def test_waiting_job_survives_and_may_begin_while_nobody_is_there(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar)
    first = sidecar.attached()
    ids = [sidecar.submit(first, slot=slot)[0] for slot in range(2)]
    eventually(lambda: len(engine._attacher.open_jobs()) == 2)
    lose(sidecar, engine)
    began = next(engine.jobs())
    began.write(b"meanwhile")
    sidecar.come_back()
    second = sidecar.attached()
    assert [(each.stream_id, each.begun) for each in two_announced(second)] == [
        (ids[0], True),
        (ids[1], False),
    ]
    sidecar.stream_bytes = 2 << 20
    third = sidecar.restart()
    assert len(two_announced(third)) == 2
    sidecar.adopt(third, ids[1], slot=3)
    sidecar.submit(third)
    eventually(lambda: len(engine._attacher.open_jobs()) == 3)
    waited = next(engine.jobs())
    waited.write(b"later")
    assert words(sidecar, third)(3) == (5, False)
    assert os.stat(sidecar.shm_dir / log_file(waited)).st_size == 2 << 20
    for job in (began, waited):
        job.finish()
    assert sidecar.answer(ids[1])[0] == b"later"


def two_announced(attachment: Attachment) -> list[engine_pb2.OpenStream]:
    return [attachment.next_announced() for _ in range(2)]


def test_ended_logs_stay_for_the_next_sidecar_and_are_not_announced(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar)
    first = sidecar.attached()
    for slot in range(3):
        sidecar.submit(first, slot=slot)
    unread, meanwhile, gone = (next(engine.jobs()) for _ in range(3))
    unread.write(b"unread")
    unread.finish()
    meanwhile.write(b"half ")
    gone.finish()
    lose(sidecar, engine)
    meanwhile.write(b"whole")
    meanwhile.finish()
    sidecar.directory.unlink(log_file(gone))
    sidecar.come_back()
    second = sidecar.attached()
    eventually(lambda: engine.serving)
    assert second.hello.announced == 0
    assert sidecar.answer(unread.stream_id)[0] == b"unread"
    assert sidecar.answer(meanwhile.stream_id)[0] == b"half whole"
    sidecar.release(second, unread.stream_id)
    eventually(lambda: log_file(unread) not in sidecar.directory.names())


def test_refusal_that_nobody_heard_is_said_to_the_next_sidecar(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar, capacity=1)
    first = sidecar.attached()
    sidecar.submit(first)
    job = next(engine.jobs())
    lose(sidecar, engine)
    job.fail(Code.INVALID_ARGUMENT, "the prompt is too long")
    sidecar.refuse = (grpc.StatusCode.UNAVAILABLE, "starting")
    sidecar.come_back()
    eventually(lambda: sidecar.refusals)
    sidecar.refuse = None
    second = sidecar.attached()
    assert second.next_announced() == engine_pb2.OpenStream(stream_id=job.stream_id, model="m")
    rejected = second.rejected.get(timeout=10)
    assert (rejected.stream_id, rejected.code) == (job.stream_id, Code.INVALID_ARGUMENT)
    assert engine._attacher.open_jobs() == []
    sidecar.submit(second)
    next(engine.jobs()).finish()
    assert sidecar.restart().hello.announced == 0


def test_job_that_the_next_sidecar_does_not_want_is_cancelled(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar)
    first = sidecar.attached()
    sidecar.submit(first)
    sidecar.submit(first, slot=1)
    eventually(lambda: len(engine._attacher.open_jobs()) == 2)
    job = next(engine.jobs())
    job.write(b"half")
    second = sidecar.restart()
    for each in two_announced(second):
        sidecar.cancel(second, each.stream_id)
    assert second.rejected.get(timeout=10).code == Code.CANCELLED, "the one that nobody took"
    eventually(lambda: job.cancelled)
    with pytest.raises(JobCancelled, match="client left"):
        job.write(b"more")
    assert sidecar.answer(job.stream_id)[1].reason == rrpa_pb2.FINISH_REASON_CANCELLED
    assert engine.poll() == []


def test_commands_of_a_sidecar_that_a_job_does_not_belong_to_are_ignored(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar)
    first = sidecar.attached()
    sidecar.submit(first)
    job = next(engine.jobs())
    job.write(b"a")
    sidecar.adopt(first, "f" * 32, slot=1)
    job.finish()
    sidecar.adopt(first, job.stream_id, slot=1)
    sidecar.submit(first, slot=3)
    next(engine.jobs()).finish()
    assert words(sidecar, first)(1) == (0, False)


def test_job_whose_client_waits_no_more_is_cancelled_while_nobody_is_there(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar)
    first = sidecar.attached()
    sidecar.submit_raw(first, b"", slot=0, timeout_ms=50)
    sidecar.submit_raw(first, b"", slot=1, timeout_ms=50)
    sidecar.submit_raw(first, b"", slot=2, timeout_ms=50, resumable=True)
    sidecar.submit_raw(first, b"", slot=3, timeout_ms=60_000)
    eventually(lambda: len(engine._attacher.open_jobs()) == 4)
    late = next(engine.jobs())
    late.write(b"half")
    lose(sidecar, engine)
    eventually(lambda: late.cancelled)
    with pytest.raises(JobCancelled, match="deadline"):
        late.write(b"more")
    eventually(lambda: sum(not job.over for job in engine._attacher.open_jobs()) == 2)
    assert [(job.resumable, job.cancelled) for job in engine.poll()] == [
        (True, False),
        (False, False),
    ]
    sidecar.come_back()
    second = sidecar.attached()
    assert second.rejected.get(timeout=10).code == Code.CANCELLED, "the one that nobody took"


def test_loop_never_gets_more_jobs_than_its_capacity(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar, capacity=2)
    first = sidecar.attached()
    old = [sidecar.submit(first, slot=slot)[0] for slot in range(2)]
    jobs = [next(engine.jobs()) for _ in range(2)]
    second = sidecar.restart()
    new = [sidecar.submit(second, slot=slot)[0] for slot in range(2)]
    eventually(lambda: len(engine._attacher.open_jobs()) == 4)
    while engine.wait(0.02):
        pass
    assert engine.poll() == []
    jobs[0].finish()
    assert engine.wait(5)
    (third,) = engine.poll()
    assert not engine.wait(0.02)
    waiting: list[Job] = []
    thread = threading.Thread(target=lambda: waiting.append(next(engine.jobs())))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    jobs[1].fail(Code.INTERNAL, "x")
    thread.join(5)
    assert [job.stream_id for job in (*jobs, third, *waiting)] == old + new


def test_announcements_fit_the_sidecars_messages_and_its_capacity(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    capacity = 300
    engine = attach_to(sidecar, models=["m" * 128], capacity=capacity)
    first = sidecar.attached()
    request = rrpa_pb2.CreateStreamRequest(model="m" * 128).SerializeToString()

    def submit_all(to: Attachment) -> list[str]:
        label = "r" * 256
        return [
            sidecar.submit_raw(to, request, slot=slot, request_id=label) for slot in range(capacity)
        ]

    ids = submit_all(first)
    eventually(lambda: len(engine._attacher.open_jobs()) == capacity)
    second = sidecar.restart()
    assert second.hello.announced == capacity
    assert [second.next_announced().stream_id for _ in ids] == ids
    ids += submit_all(second)
    eventually(lambda: len(engine._attacher.open_jobs()) == 2 * capacity)
    third = sidecar.restart()
    assert third.hello.announced == capacity
    assert [third.next_announced().stream_id for _ in ids] == ids


def test_what_a_failed_attempt_announced_is_announced_by_the_next(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar)
    sidecar.submit(sidecar.attached())
    job = next(engine.jobs())
    job.write(b"a")
    lose(sidecar, engine)
    sidecar.refuse = (grpc.StatusCode.UNAVAILABLE, "draining")
    sidecar.come_back()
    eventually(lambda: sidecar.refusals)
    sidecar.refuse = None
    second = sidecar.attached()
    assert second.next_announced().stream_id == job.stream_id
    sidecar.adopt(second, job.stream_id, slot=1)
    eventually(lambda: words(sidecar, second)(1) == (0, False))
    job.finish()


def test_refusal_of_the_next_sidecar_ends_every_job_so_that_nobody_takes_it_for_whole(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar)
    first = sidecar.attached()
    sidecar.submit(first)
    job = next(engine.jobs())
    job.write(b"half")
    sidecar.submit(first, slot=1)
    eventually(lambda: len(engine._attacher.open_jobs()) == 2)
    lose(sidecar, engine)
    sidecar.refuse = (grpc.StatusCode.FAILED_PRECONDITION, "mount the same volume")
    sidecar.come_back()
    eventually(lambda: job.cancelled)
    with pytest.raises(AttachRefused, match="mount the same volume"):
        engine.poll()
    eventually(lambda: [each.over for each in engine._attacher.open_jobs()] == [False, True])
    with pytest.raises(JobCancelled, match="no more"):
        job.write(b"more")
    data, end = sidecar.answer(job.stream_id)
    assert (data, end.code) == (b"half", Code.UNAVAILABLE)


def test_log_of_a_job_is_complete_after_twenty_restarts_in_a_row(
    sidecar: FakeSidecar, attach_to: AttachTo, seeded: Random
) -> None:
    """Four threads write while the sidecar comes and goes; each log is what its thread says."""
    engine = attach_to(sidecar)
    attachment = sidecar.attached()
    for slot in range(4):
        sidecar.submit(attachment, slot=slot)
    done = threading.Event()
    written: dict[str, bytes] = {}

    def write(random: Random) -> None:
        said = b""
        with next(engine.jobs()) as job:
            while not done.is_set():
                token = random.randbytes(random.randrange(60))
                job.write(token)
                said += token
                time.sleep(random.random() / 1000)
            job.finish()
        written[job.stream_id] = said

    seeds = [seeded.randrange(1 << 32) for _ in range(4)]
    threads = [threading.Thread(target=write, args=(Random(seed),)) for seed in seeds]
    for thread in threads:
        thread.start()
    eventually(lambda: [job.begun for job in engine._attacher.open_jobs()] == [True] * 4)
    for _ in range(RESTARTS):
        attachment = sidecar.restart()
        slots = seeded.sample(range(4), 4)
        for slot in slots[: seeded.randrange(5)]:
            sidecar.adopt(attachment, attachment.next_announced().stream_id, slot=slot)
    done.set()
    for thread in threads:
        thread.join(10)
    assert len(written) == 4
    eventually(lambda: engine.serving)
    assert len(engine._bell._ringers) == 1
    for stream_id, said in written.items():
        data, end = sidecar.answer(stream_id)
        assert (data == said, end.code) == (True, Code.OK)
    engine.close()
    assert sidecar.directory.names() == []


def test_engine_that_closes_without_a_sidecar_leaves_only_what_may_be_asked_for(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar)
    first = sidecar.attached()
    for slot, resumable in enumerate((False, True, False, True)):
        sidecar.submit_raw(first, b"", slot=slot, resumable=resumable)
    jobs = [next(engine.jobs()) for _ in range(4)]
    for job in jobs:
        job.write(b"x")
    for job in jobs[:2]:
        job.finish()
    lose(sidecar, engine)
    began = time.monotonic()
    engine.close()
    assert time.monotonic() - began < 1
    kept = [log_file(job) for job in jobs if job.resumable]
    assert sidecar.directory.names() == sorted(kept)
    assert sidecar.answer(jobs[1].stream_id)[1].code == Code.OK
    assert sidecar.answer(jobs[3].stream_id)[1].code == Code.UNAVAILABLE


def test_engine_whose_sidecar_may_not_remove_its_files_leaves_none(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar)
    first = sidecar.attached()
    for slot in range(2):
        sidecar.submit_raw(first, b"", slot=slot, resumable=True)
    jobs = [next(engine.jobs()) for _ in range(2)]
    for job in jobs:
        job.finish()
    sidecar.release(first, jobs[0].stream_id)
    eventually(lambda: log_file(jobs[0]) not in sidecar.directory.names())
    engine.close()
    assert sidecar.directory.names() == []


def test_closing_engine_does_not_wait_for_the_logs_that_stay(
    sidecar: FakeSidecar, attach_to: AttachTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rrpa_sidecar.engine.engine.CLOSE_GRACE_S", 5)
    engine = attach_to(sidecar)
    sidecar.submit_raw(sidecar.attached(), b"", resumable=True)
    job = next(engine.jobs())
    job.finish()
    began = time.monotonic()
    engine.close()
    assert time.monotonic() - began < 4
    assert sidecar.directory.names() == [log_file(job)]


def test_restart_is_one_line_each_way(
    sidecar: FakeSidecar, attach_to: AttachTo, caplog: pytest.LogCaptureFixture
) -> None:
    engine = attach_to(sidecar)
    sidecar.attached()
    eventually(lambda: engine.serving)
    caplog.set_level(logging.INFO, "rrpa_sidecar.engine")
    lose(sidecar, engine)
    # What a restart looks like from here: a socket that nobody answers, none, one not ready yet.
    Path(sidecar.socket).touch()
    time.sleep(0.1)
    sidecar.refuse = (grpc.StatusCode.UNAVAILABLE, "starting")
    sidecar.come_back()
    eventually(lambda: sidecar.refusals > 1)
    sidecar.refuse = None
    sidecar.attached()
    eventually(lambda: engine.serving)
    lines = [each.getMessage() for each in caplog.records if each.name.startswith("rrpa")]
    assert [line.split(" ", 2)[:2] for line in lines] == [["not", "attached"], ["attached", "to"]]


def test_child_of_an_engine_that_unwinds_touches_no_job_and_no_file(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar)
    sidecar.submit(sidecar.attached())
    job = next(engine.jobs())
    job.write(b"a")
    second = sidecar.restart()
    sidecar.adopt(second, second.next_announced().stream_id, slot=1)
    sidecar.submit(second, slot=2)
    next(engine.jobs()).finish()
    names = sidecar.directory.names()
    assert exit_of(fork(engine.close)) == 0
    assert sidecar.directory.names() == names
    job.write(b"b")
    assert words(sidecar, second)(1) == (2, False)
    reader = sidecar.log(job.stream_id)
    assert not reader.writer_gone()
    reader.close()
    job.finish()
    assert sidecar.answer(job.stream_id)[0] == b"ab"


FORKING_ENGINE = """
import os, signal, sys, time
from rrpa_sidecar.engine import attach

engine = attach(sys.argv[1], shm_dir=sys.argv[2], models=["m"], capacity=4)
job = next(engine.jobs())
job.write(b"a")
next(engine.jobs())  # submitted after Adopt
job.write(b"b")
if os.fork() == 0:
    time.sleep(60)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_child_of_a_killed_engine_keeps_no_lease_of_a_log_that_had_moved(
    sidecar: FakeSidecar,
) -> None:
    argv = [sys.executable, "-c", FORKING_ENGINE, sidecar.socket, str(sidecar.shm_dir)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
    try:
        stream_id, _ = sidecar.submit(sidecar.attached())
        reader = sidecar.log(stream_id)
        second = sidecar.restart()
        table = sidecar.table(second)
        sidecar.adopt(second, stream_id, slot=1)
        sidecar.submit(second)
        eventually(lambda: reader.progress()[0] == 2)
        assert table.poll()
        assert table.word(1) == (2, False)
        assert process.wait(10) == -signal.SIGKILL
        os.killpg(process.pid, 0)  # the child lives
        eventually(reader.writer_gone)
        eventually(table.writer_gone)
        reader.close()
        table.close()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
