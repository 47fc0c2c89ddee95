"""What an engine may do with a job, and what the sidecar sees of it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from rrpa_sidecar.engine import Code, InvalidRequest, Job, JobCancelled, JobOver, Usage
from rrpa_sidecar.engine.job import Job as JobType
from rrpa_sidecar.errors import ShmFull, StreamMisuse
from rrpa_sidecar.pb import rrpa_pb2
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.writer import LogWriter
from tests.engine.conftest import AttachTo
from tests.engine.fake_sidecar import Attachment, FakeSidecar, eventually


class Desk:
    """An attached engine that takes jobs one by one."""

    def __init__(self, sidecar: FakeSidecar, attach_to: AttachTo) -> None:
        self.sidecar = sidecar
        self.engine = attach_to(sidecar)
        self.attachment: Attachment = sidecar.attached()

    def job(self, **request: object) -> Job:
        self.sidecar.submit(self.attachment, **request)
        return next(self.engine.jobs())

    def raw_job(self, request: bytes) -> Job:
        self.sidecar.submit_raw(self.attachment, request)
        return next(self.engine.jobs())

    def end_of(self, job: Job) -> tuple[bytes, End]:
        return self.sidecar.answer(job.stream_id)

    def rejection(self) -> tuple[int, str]:
        rejected = self.attachment.rejected.get(timeout=10)
        return rejected.code, rejected.message


@pytest.fixture
def desk(sidecar: FakeSidecar, attach_to: AttachTo) -> Desk:
    return Desk(sidecar, attach_to)


def test_bytes_and_end_arrive_as_written(desk: Desk) -> None:
    job = desk.job(prompt="A\0B")
    assert job.request.prompt == "A\0B"
    for token in (b"\xf0\x9f", b"", b"\x98\x80", b"\0\xff"):
        job.write(token)
    job.finish("stop_sequence", stop_sequence="é", usage=Usage(3, 4, 1))
    data, end = desk.end_of(job)
    assert data == b"\xf0\x9f\x98\x80\0\xff"
    assert end == End(0, rrpa_pb2.FINISH_REASON_STOP_SEQUENCE, "é".encode(), 3, 4, 1)


def test_answer_without_a_token_finishes(desk: Desk) -> None:
    job = desk.job()
    job.finish()
    assert desk.end_of(job) == (b"", End(reason=rrpa_pb2.FINISH_REASON_STOP))


def test_usage_counts_written_tokens_when_the_engine_gives_none(desk: Desk) -> None:
    with desk.job() as job:
        job.write(b"a")
        job.write(b"")
        job.finish("length")
    assert desk.end_of(job)[1].completion_tokens == 2


def test_request_bytes_reach_the_engine_unchanged(desk: Desk) -> None:
    unknown_field = bytes.fromhex("0a016dfa3f03616263")
    assert desk.raw_job(unknown_field).request_bytes == unknown_field


def test_request_that_is_no_request_is_rejected(desk: Desk) -> None:
    with desk.raw_job(b"\xff\xff") as job:
        _ = job.request
    assert desk.rejection()[0] == Code.INVALID_ARGUMENT


def test_invalid_request_before_the_first_token_is_a_rejection(desk: Desk) -> None:
    with desk.job():
        raise InvalidRequest("the prompt is too long")
    assert desk.rejection() == (Code.INVALID_ARGUMENT, "the prompt is too long")


def test_exception_after_tokens_is_internal_for_this_stream_and_hides_its_text(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    with desk.job() as job:
        job.write(b"half")
        raise RuntimeError("secret 🚂\n" * 4000)
    data, end = desk.end_of(job)
    assert (data, end.code) == (b"half", Code.INTERNAL)
    assert end.text == "the engine failed with RuntimeError"
    assert any("failed" in record.message for record in caplog.records)
    with desk.job() as job:
        job.finish()
    assert desk.end_of(job)[1].code == 0


def test_block_without_finish_gives_an_unspecified_reason(desk: Desk) -> None:
    with desk.job() as job:
        job.write(b"x")
    assert desk.end_of(job)[1].reason == rrpa_pb2.FINISH_REASON_UNSPECIFIED


def test_failure_text_is_one_short_line(desk: Desk) -> None:
    job = desk.job()
    job.write(b"x")
    job.fail(Code.DATA_LOSS, "a\nb\0c" + "🚂" * 20_000)
    text = desk.end_of(job)[1].text
    assert text.startswith("a b c🚂")
    assert len(text.encode()) <= 199


@pytest.mark.parametrize("code", [Code.OK, 17, -1])
def test_code_that_is_no_failure_is_misuse(desk: Desk, code: int) -> None:
    job = desk.job()
    with pytest.raises(StreamMisuse, match="failure"):
        job.fail(code, "x")
    job.finish()


def test_unknown_reason_names_the_known_ones_and_leaves_the_job_open(desk: Desk) -> None:
    job = desk.job()
    with pytest.raises(ValueError, match="stop_sequence"):
        job.finish("eos")
    job.finish("stop")


def test_job_ends_once(desk: Desk) -> None:
    job = desk.job()
    job.write(b"x")
    with pytest.raises(StreamMisuse):
        job.reject(Code.INTERNAL, "too late")
    job.finish()
    for again in (job.finish, lambda: job.write(b"y"), lambda: job.fail(Code.INTERNAL, "")):
        with pytest.raises(StreamMisuse):
            again()


def test_a_fault_after_the_end_is_logged_and_harms_no_other_stream(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    for late in (lambda job: job.write(b"y"), lambda job: job.finish(), lambda _: 1 / 0):
        caplog.clear()
        with desk.job() as job:
            job.write(b"x")
            job.finish()
            late(job)
        data, end = desk.end_of(job)
        assert (data, end.code) == (b"x", Code.OK)
        assert f"job {job.stream_id} had ended already" in caplog.text


def test_write_after_the_end_says_so(desk: Desk) -> None:
    job = desk.job()
    job.write(b"x")
    job.finish()
    with pytest.raises(StreamMisuse, match=f"{job.stream_id} has ended already"):
        job.write(b"y")


def test_cancel_reaches_a_running_job_and_its_log_ends_as_cancelled(desk: Desk) -> None:
    job = desk.job()
    job.write(b"x")
    desk.sidecar.cancel(desk.attachment, job.stream_id)
    eventually(lambda: job.cancelled)
    with pytest.raises(JobCancelled, match="client left"):
        job.write(b"y")
    assert job.over
    data, end = desk.end_of(job)
    assert (data, end.code, end.reason) == (b"x", 0, rrpa_pb2.FINISH_REASON_CANCELLED)


def test_cancel_passes_silently_out_of_the_block(desk: Desk) -> None:
    with desk.job() as job:
        desk.sidecar.cancel(desk.attachment, job.stream_id)
        eventually(lambda: job.cancelled)
        job.write(b"y")
        pytest.fail("the write had to raise")
    assert desk.rejection()[0] == Code.CANCELLED


def test_cancel_of_a_job_that_nobody_took_is_answered_at_once(desk: Desk) -> None:
    stream_id, _ = desk.sidecar.submit(desk.attachment)
    desk.sidecar.cancel(desk.attachment, stream_id)
    assert desk.rejection()[0] == Code.CANCELLED
    assert desk.engine.poll() == []


def test_cancel_of_unknown_and_finished_streams_is_ignored(desk: Desk) -> None:
    job = desk.job()
    job.finish()
    desk.sidecar.cancel(desk.attachment, job.stream_id)
    desk.sidecar.cancel(desk.attachment, "f" * 32)
    desk.job().finish()
    assert desk.end_of(job)[1].reason == rrpa_pb2.FINISH_REASON_STOP


def test_full_log_ends_with_resource_exhausted_and_the_engine_lives(desk: Desk) -> None:
    job = desk.job()
    room = desk.sidecar.stream_bytes - 64 * 1024
    job.write(bytes(room))
    with pytest.raises(JobOver) as caught:
        job.write(b"x")
    assert not isinstance(caught.value, JobCancelled)
    data, end = desk.end_of(job)
    assert (len(data), end.code) == (room, Code.RESOURCE_EXHAUSTED)
    assert str(room) in end.text
    desk.job().finish()


def test_no_room_for_the_log_is_a_rejection(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> LogWriter:
        raise ShmFull("shared memory is full: 0 of 5 bytes free")

    with monkeypatch.context() as patched:
        patched.setattr(LogWriter, "create", full)
        with desk.job() as job:
            job.write(b"x")
            pytest.fail("the write had to raise")
    assert desk.rejection() == (
        Code.RESOURCE_EXHAUSTED,
        "shared memory is full: 0 of 5 bytes free",
    )
    desk.job().finish()


def test_no_room_for_a_token_ends_with_resource_exhausted(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise ShmFull("shared memory is full: 0 of 5 bytes free")

    with desk.job() as job:
        job.write(b"kept")
        monkeypatch.setattr(LogWriter, "write", full)
        job.write(b"lost")
    data, end = desk.end_of(job)
    assert (data, end.code) == (b"kept", Code.RESOURCE_EXHAUSTED)


def test_release_removes_an_ended_log_and_nothing_else(desk: Desk) -> None:
    ended, running = desk.job(), desk.job()
    ended.finish()
    running.write(b"x")
    (desk.sidecar.shm_dir / f"rrpa_{'a' * 32}").write_bytes(b"another engine's")
    for stream_id in (running.stream_id, "a" * 32, "../x", ended.stream_id):
        desk.sidecar.release(desk.attachment, stream_id)
    eventually(lambda: f"rrpa_{ended.stream_id}" not in desk.sidecar.directory.names())
    assert (desk.sidecar.shm_dir / f"rrpa_{'a' * 32}").exists()
    running.write(b"y")
    running.finish()
    assert desk.end_of(running)[0] == b"xy"


def test_labels_reach_the_job(desk: Desk) -> None:
    desk.sidecar.submit_raw(
        desk.attachment, b"", request_id="r", traceparent="t", priority=-3, timeout_ms=1500
    )
    desk.sidecar.submit_raw(desk.attachment, b"")
    first, second = next(desk.engine.jobs()), next(desk.engine.jobs())
    assert (first.request_id, first.traceparent, first.priority) == ("r", "t", -3)
    assert (first.timeout_s, second.timeout_s) == (1.5, None)


def test_step_rings_once_for_many_writes_and_lone_writes_ring_each(desk: Desk) -> None:
    jobs = [desk.job() for _ in range(3)]
    table = desk.sidecar.table(desk.attachment)
    bell = desk.sidecar.bell
    rings = 0
    bell.drain()
    with desk.engine.step():
        for job in jobs:
            job.write(b"x")
            assert not bell.drain(), "rang inside the step"
    assert bell.drain()
    assert not bell.drain()
    assert table.poll()
    for job in jobs:
        job.write(b"y")
        rings += bell.drain()
        job.finish()
        rings += bell.drain()
    assert rings == 6
    table.close()


def test_begin_creates_the_log_before_any_token(desk: Desk, short_dir: Path) -> None:
    job = desk.job()
    assert not job.begun
    job.begin()
    job.begin()
    assert f"rrpa_{job.stream_id}" in desk.sidecar.directory.names()
    job.finish()


def test_library_exports_the_job_type() -> None:
    assert Job is JobType
    logging.getLogger("rrpa_sidecar.engine")
