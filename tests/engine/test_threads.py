"""The engine's loop, the library's threads and whoever closes the engine, at the same moment."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import rrpa_sidecar.engine.attacher as attacher_module
from rrpa_sidecar.engine import Code, Job
from rrpa_sidecar.engine import files as files_module
from rrpa_sidecar.engine.over import Cause
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.writer import LogWriter
from tests.engine.conftest import AttachTo
from tests.engine.fake_sidecar import FakeSidecar, eventually


def test_job_that_two_threads_end_for_an_engine_that_stops_has_one_end(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar)
    attachment = sidecar.attached()
    sidecar.submit(attachment)
    job = next(engine.jobs())
    job.cancel(Cause.STOPPING)
    with ThreadPoolExecutor(2) as threads:
        with job._lock:  # both have seen that it is open, and wait here
            ends = [threads.submit(job.abandon) for _ in range(2)]
            time.sleep(0.1)
        for each in ends:
            each.result(10)
    assert attachment.rejected.get(timeout=10).code == Code.UNAVAILABLE
    assert attachment.rejected.empty()


def test_submission_that_is_ended_by_a_closing_engine_costs_no_attachment(
    sidecar: FakeSidecar, attach_to: AttachTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = attach_to(sidecar)
    attachment = sidecar.attached()

    def stopping(job: Job) -> bool:
        job.cancel(Cause.STOPPING)
        job.abandon()
        return False

    monkeypatch.setattr(engine._inbox, "put", stopping)
    for slot in range(2):
        sidecar.submit(attachment, slot=slot)
        assert attachment.rejected.get(timeout=10).code == Code.UNAVAILABLE
    assert sidecar.attachments.empty()


def test_release_that_comes_right_after_the_end_removes_the_file(
    sidecar: FakeSidecar, attach_to: AttachTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = attach_to(sidecar)
    attachment = sidecar.attached()
    sidecar.submit(attachment)
    job = next(engine.jobs())
    finish = LogWriter.finish

    def sidecar_is_fast(log: LogWriter, end: End) -> None:
        finish(log, end)
        engine._files.release(log.stream_id)

    monkeypatch.setattr(LogWriter, "finish", sidecar_is_fast)
    job.finish()
    assert f"rrpa_{job.stream_id}" not in sidecar.directory.names()


def test_jobs_end_and_make_room_while_the_directory_cannot_be_listed(
    sidecar: FakeSidecar, attach_to: AttachTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "PRUNE_AT", 1)
    engine = attach_to(sidecar, capacity=1)
    attachment = sidecar.attached()

    def no_descriptor() -> list[str]:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as faulty:
        faulty.setattr(engine._files._directory, "names", no_descriptor)
        for _ in range(3):
            sidecar.submit(attachment)
            next(engine.jobs()).finish()
    assert engine._attacher.open_jobs() == []


def test_engine_is_closed_while_the_thread_for_a_successor_starts(
    sidecar: FakeSidecar, attach_to: AttachTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = attach_to(sidecar)
    attachment = sidecar.attached()
    starts = threading.Event()

    class Slow(threading.Thread):
        def start(self) -> None:
            starts.set()
            time.sleep(0.2)
            super().start()

    monkeypatch.setattr(attacher_module, "Thread", Slow)
    monkeypatch.setattr(attacher_module, "HANG_UP_S", 0.05)
    sidecar.drain(attachment)
    assert starts.wait(10)
    engine.close()
    eventually(lambda: all(each.name != "rrpa-engine" for each in threading.enumerate()))
