"""Attaching, losing the sidecar, coming back, leaving."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from pathlib import Path
from random import Random

import grpc
import pytest

import rrpa_sidecar.engine.engine as engine_module
from rrpa_sidecar.engine import AttachRefused, Code, JobCancelled, attach
from rrpa_sidecar.engine.attacher import _nobody_there
from rrpa_sidecar.engine.backoff import EAGER_LOOKS, FIRST_S, LONGEST_S, Backoff
from rrpa_sidecar.engine.bell import StepBell
from rrpa_sidecar.errors import ShmFull, StartupError, StreamMisuse
from rrpa_sidecar.pb import engine_pb2
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.table import TableWriter
from tests.engine.conftest import AttachTo
from tests.engine.fake_sidecar import FakeSidecar, eventually


def test_hello_says_who_and_where(sidecar: FakeSidecar, attach_to: AttachTo) -> None:
    attach_to(sidecar, models=["a", "b"], capacity=7, name="me", build="v1")
    hello = sidecar.attached().hello
    assert (hello.engine_name, list(hello.models), hello.capacity) == ("me", ["a", "b"], 7)
    assert (hello.build, hello.format_version) == ("v1", layout.VERSION)
    assert hello.shm_dir == str(sidecar.shm_dir)
    assert hello.shm_device == os.stat(sidecar.shm_dir).st_dev
    assert hello.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    table = f"rrpa_table_{hello.table_id}"
    assert table in sidecar.directory.names()
    assert len(hello.table_nonce) == 16


def test_table_is_the_one_that_hello_speaks_of(sidecar: FakeSidecar, attach_to: AttachTo) -> None:
    engine = attach_to(sidecar)
    attachment = sidecar.attached()
    table = sidecar.table(attachment)
    sidecar.submit(attachment, slot=2)
    job = next(engine.jobs())
    job.write(b"abc")
    assert [slot for moves in table.poll() for slot, _ in moves.pairs] == [2]
    table.close()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"models": []}, "1 to 64 models"),
        ({"models": "echo"}, "not one string"),
        ({"models": ["m"] * 2}, "twice"),
        ({"models": [f"m{i}" for i in range(65)]}, "1 to 64 models"),
        ({"models": ["m" * 129]}, "128"),
        ({"models": ["é"]}, "ASCII"),
        ({"models": ["a\nb"]}, "printable"),
        ({"models": [""]}, "printable"),
        ({"capacity": 0}, "capacity 0"),
        ({"capacity": 65_537}, "65536"),
        ({"name": "a b"}, "A-Za-z0-9"),
        ({"name": "a" * 65}, "64"),
        ({"build": "é" * 129}, "258 bytes"),
        ({"engine_socket": "/tmp/" + "x" * 103}, "108 bytes, the limit is 107"),
    ],
)
def test_wrong_argument_is_refused_with_its_rule(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        attach(**{"models": ["m"], **wrong})  # type: ignore[arg-type]


def test_missing_directory_is_a_startup_error() -> None:
    with pytest.raises(StartupError, match="/nonexistent"):
        attach(models=["m"], shm_dir="/nonexistent")


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION]
)
def test_refusal_ends_every_wait_with_the_sidecars_sentence(
    short_dir: Path, attach_to: AttachTo, code: grpc.StatusCode
) -> None:
    with FakeSidecar(short_dir, refuse=(code, "mount the same volume")) as sidecar:
        engine = attach_to(sidecar)
        for waiting in (engine.wait_serving, engine.wait, engine.poll, lambda: next(engine.jobs())):
            with pytest.raises(AttachRefused, match="mount the same volume"):
                waiting()
        assert sidecar.directory.names() == []


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.DEADLINE_EXCEEDED,  # what it says of a Hello that came late
    ],
)
def test_sidecar_that_cannot_now_is_asked_again(
    short_dir: Path, attach_to: AttachTo, code: grpc.StatusCode
) -> None:
    with FakeSidecar(short_dir, refuse=(code, "draining")) as sidecar:
        engine = attach_to(sidecar)
        assert not engine.wait_serving(0.2)
        sidecar.refuse = None
        began = time.monotonic()
        assert engine.wait_serving(10)
        assert time.monotonic() - began < 5, "the wait must end when attached, not at its limit"


@pytest.mark.parametrize("fault", [ShmFull("full"), StreamMisuse("removed"), OSError(24, "files")])
def test_table_that_cannot_be_created_now_is_tried_again(
    sidecar: FakeSidecar,
    attach_to: AttachTo,
    monkeypatch: pytest.MonkeyPatch,
    fault: Exception,
) -> None:
    create, faults = TableWriter.create, [fault, fault]

    def at_last(*args: object) -> TableWriter:
        if faults:
            raise faults.pop()
        return create(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(TableWriter, "create", at_last)
    assert attach_to(sidecar).wait_serving(10)


def test_engine_may_start_before_the_sidecar(short_dir: Path) -> None:
    shm = short_dir / "shm"
    shm.mkdir()
    with attach(str(short_dir / "rrpa.sock"), models=["m"], shm_dir=str(shm)) as engine:
        assert not engine.wait_serving(0.1)
        with FakeSidecar(short_dir):
            assert engine.wait_serving(10)
            engine.close()
            assert not engine.serving


def test_no_sidecar_is_said_in_one_line_and_once_and_costs_no_table(
    short_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables: list[object] = []
    monkeypatch.setattr(TableWriter, "create", lambda *args: tables.append(args))
    path = short_dir / "rrpa.sock"
    shm = short_dir / "shm"
    shm.mkdir()
    with attach(str(path), models=["m"], shm_dir=str(shm)) as engine:
        assert not engine.wait_serving(0.5)
    (line,) = [each.getMessage() for each in caplog.records if each.name.startswith("rrpa")]
    assert tables == []
    assert line == (
        f"not attached to {path}, trying again: No such file or directory; is `rrpa serve` running,"
        " with this --engine-socket?"
    )


def test_socket_of_another_group_is_not_taken_for_a_sidecar_that_does_not_run(
    sidecar: FakeSidecar, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(probe: socket.socket, path: str) -> None:
        raise PermissionError(errno.EACCES, "")  # root would be let in

    monkeypatch.setattr(socket.socket, "connect", connect)
    with attach(sidecar.socket, models=["m"], shm_dir=str(sidecar.shm_dir)) as engine:
        assert not engine.wait_serving(0.3)
    (line,) = [each.getMessage() for each in caplog.records if each.name.startswith("rrpa")]
    assert line.endswith(
        "Permission denied; this user is not in the group of the socket, or of a directory above it"
    )


def test_who_was_told_that_there_is_no_sidecar_is_told_that_there_is_one(
    sidecar: FakeSidecar, attach_to: AttachTo, caplog: pytest.LogCaptureFixture
) -> None:
    attach_to(sidecar)
    sidecar.attached()
    assert "attached" not in caplog.text, "warnings alone: nothing had been said"
    sidecar.stop()
    eventually(lambda: "trying again" in caplog.text)
    sidecar.start()
    sidecar.attached()
    eventually(lambda: caplog.messages[-1].startswith(f"attached to {sidecar.socket}, version"))
    assert caplog.records[-1].levelname == "WARNING"


@pytest.mark.parametrize("status", [(), (grpc.StatusCode.INVALID_ARGUMENT, "wrong")])
def test_end_of_the_call_after_welcome_is_no_refusal_whatever_its_status(
    sidecar: FakeSidecar, attach_to: AttachTo, status: tuple[object, ...]
) -> None:
    engine = attach_to(sidecar)
    first = sidecar.attached()
    first.end(*status)
    second = sidecar.attached()
    assert second.hello.table_id != first.hello.table_id
    sidecar.submit(second)
    next(engine.jobs()).finish()


def test_stop_ends_jobs_and_refuses_those_that_wait(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar)
    attachment = sidecar.attached()
    sidecar.submit(attachment)
    running = next(engine.jobs())
    running.write(b"half")
    sidecar.submit(attachment, slot=1)
    eventually(lambda: len(engine._attacher.open_jobs()) == 2)
    engine.stop()
    assert list(engine.jobs()) == []
    assert attachment.rejected.get(timeout=10).code == Code.UNAVAILABLE
    with pytest.raises(JobCancelled, match="stopping"):
        running.write(b"more")
    data, end = sidecar.answer(running.stream_id)
    assert (data, end.code) == (b"half", Code.UNAVAILABLE)
    sidecar.submit(attachment, slot=2)
    assert attachment.rejected.get(timeout=10).code == Code.UNAVAILABLE


def test_stop_wakes_a_blocked_loop(sidecar: FakeSidecar, attach_to: AttachTo) -> None:
    engine = attach_to(sidecar)
    sidecar.attached()
    seen: list[object] = []
    threads = [
        threading.Thread(target=lambda: seen.append(list(engine.jobs()))),
        threading.Thread(target=lambda: seen.append(engine.wait())),
    ]
    for thread in threads:
        thread.start()
    engine.stop()
    for thread in threads:
        thread.join(5)
    assert len(seen) == 2


def test_close_ends_open_jobs_detaches_and_leaves_no_file_and_no_thread(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar)
    attachment = sidecar.attached()
    stream_id, _ = sidecar.submit(attachment)
    next(engine.jobs()).write(b"half")
    reader = sidecar.log(stream_id)
    began = time.monotonic()
    engine.close()
    assert time.monotonic() - began < 4
    size, end = reader.progress()
    assert end is not None
    assert (size, end.code, end.text) == (4, Code.UNAVAILABLE, "the engine is stopping; try again")
    reader.close()
    eventually(lambda: attachment.ended)
    assert attachment.hung_up
    assert sidecar.directory.names() == []
    assert not [each for each in threading.enumerate() if each.name == "rrpa-engine"]
    engine.close()


def test_close_does_not_wait_once_the_sidecar_removed_the_files(
    sidecar: FakeSidecar, attach_to: AttachTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "CLOSE_GRACE_S", 5)
    engine = attach_to(sidecar)
    attachment = sidecar.attached()
    sidecar.submit(attachment)
    job = next(engine.jobs())
    job.finish()
    sidecar.directory.unlink(f"rrpa_{job.stream_id}")
    began = time.monotonic()
    engine.close()
    assert time.monotonic() - began < 4


def test_jobs_go_to_one_of_several_threads(sidecar: FakeSidecar, attach_to: AttachTo) -> None:
    engine = attach_to(sidecar, capacity=64)
    attachment = sidecar.attached()
    taken: list[str] = []

    def work() -> None:
        for job in engine.jobs():
            with job:
                taken.append(job.stream_id)
                job.finish()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    given = [sidecar.submit(attachment, slot=slot)[0] for slot in range(64)]
    eventually(lambda: len(taken) == 64)
    engine.stop()
    for thread in threads:
        thread.join(5)
    assert sorted(taken) == sorted(given)


def test_commands_of_one_message_are_obeyed_in_their_order(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar, capacity=3)
    attachment = sidecar.attached()
    submits = [
        {"submit": engine_pb2.Submit(stream_id=f"{slot:032x}", slot=slot)} for slot in range(3)
    ]
    cancel = {"cancel": engine_pb2.Cancel(stream_id=f"{1:032x}")}
    attachment.say_all(*submits[:2], cancel, submits[2])
    rejected = attachment.rejected.get(timeout=5)
    assert (rejected.stream_id, rejected.code) == (f"{1:032x}", Code.CANCELLED)
    jobs = engine.jobs()
    assert [next(jobs).stream_id for _ in range(2)] == [f"{0:032x}", f"{2:032x}"]


def test_wait_returns_for_a_cancel_a_wake_and_when_time_is_up(
    sidecar: FakeSidecar, attach_to: AttachTo
) -> None:
    engine = attach_to(sidecar)
    attachment = sidecar.attached()
    engine.wait(5)  # attached is news
    stream_id, _ = sidecar.submit(attachment)
    assert engine.wait(5)
    (job,) = engine.poll()
    assert not engine.wait(0.01)
    sidecar.cancel(attachment, stream_id)
    assert engine.wait(5)
    assert job.cancelled
    engine.wake()
    assert engine.wait(5)
    assert not engine.wait(0)


def test_bell_is_not_taken_away_from_a_thread_that_rings_it() -> None:
    ringing, go_on, seen = threading.Event(), threading.Event(), []

    class SlowRinger:
        def ring(self) -> bool:
            ringing.set()
            go_on.wait(5)
            seen.append("rang")
            return True

        def close(self) -> None:
            seen.append("closed")

    bell = StepBell()
    slow = SlowRinger()
    bell.add(slow)  # type: ignore[arg-type]
    ringer = threading.Thread(target=bell.ring)
    ringer.start()
    assert ringing.wait(5)
    detaching = threading.Thread(target=bell.remove, args=(slow,))
    detaching.start()
    detaching.join(0.05)
    go_on.set()
    for thread in (ringer, detaching):
        thread.join(5)
    bell.ring()
    assert seen == ["rang", "closed"]


def test_backoff_doubles_is_spread_and_has_an_edge() -> None:
    backoff = Backoff(Random(7))
    waits = [backoff.next_s() for _ in range(20)]
    assert FIRST_S / 2 <= waits[0] <= FIRST_S
    assert all(LONGEST_S / 2 <= wait <= LONGEST_S for wait in waits[8:])
    assert len(set(waits[8:])) > 1
    backoff.reset()
    assert backoff.next_s() <= FIRST_S


def test_looks_for_a_sidecar_are_eager_for_a_while_and_then_as_rare_as_tries() -> None:
    backoff = Backoff(Random(7))
    eager = [backoff.next_s(only_looked=True) for _ in range(EAGER_LOOKS + 1)]
    assert max(eager) <= FIRST_S
    assert sum(eager) > 2 * LONGEST_S
    later = [backoff.next_s(only_looked=True) for _ in range(8)]
    assert later[0] > FIRST_S / 2
    assert all(LONGEST_S / 2 <= wait <= LONGEST_S for wait in later[5:])
    backoff.reset()
    assert backoff.next_s(only_looked=True) <= FIRST_S
    assert backoff.next_s(only_looked=True) <= FIRST_S


def test_engine_that_finds_the_sidecars_queue_full_attaches_later(short_dir: Path) -> None:
    path = str(short_dir / "rrpa.sock")
    made = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    busy, first, second = made
    busy.bind(path)
    busy.listen(0)
    first.connect(path)
    second.setblocking(False)
    with pytest.raises(BlockingIOError):
        second.connect(path)
    assert _nobody_there(path) == ""
    shm = short_dir / "shm"
    shm.mkdir()
    with attach(path, models=["m"], shm_dir=str(shm)) as engine:
        assert not engine.wait_serving(0.3)
        for each in made:
            each.close()
        Path(path).unlink()
        with FakeSidecar(short_dir):
            assert engine.wait_serving(5)
            engine.close()
