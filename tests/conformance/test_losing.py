"""Engines that die, and engines that see another shared memory (R4, M1, field-bugs.md G31)."""

from __future__ import annotations

import pathlib
import stat
import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from rrpa_sidecar.pb import rrpa_pb2_grpc
from tests.conformance.asking import replay
from tests.conformance.callers import ROWS, Answer, Caller, GrpcCaller, collect
from tests.harness.processes import Daemon, ReplayEngine, Stack, eventually

DROPPED_WITHIN_S = 1.0
SPOKEN = replay([b"half ", b"an answer"], delays_s=[0, 60])
SILENT = replay([b"never"], delay_s=60)


@pytest.fixture(scope="module")
def lonely() -> Iterator[Stack]:
    """A sidecar and Envoy; each test brings the engine that it kills."""
    with Stack(engine=None, envoy={"wait_healthy": False}) as running:
        yield running


@pytest.mark.parametrize("row", list(ROWS))
def test_killed_engine_is_dropped_within_a_second_and_its_streams_break(
    lonely: Stack, row: str
) -> None:
    daemon = lonely.daemon
    caller = ROWS[row](lonely)
    before = frames_of(daemon)
    answers: list[Answer] = []
    with ReplayEngine(daemon, capacity=4) as engine:
        asking = [
            threading.Thread(target=lambda request=request: answers.append(caller.ask(request)))
            for request in (SPOKEN, SILENT)
        ]
        for thread in asking:
            thread.start()
        eventually(lambda: daemon.metric("rrpa_active_streams") == 2, what="both are at work")
        eventually(lambda: frames_of(daemon) == before + 1, what="one of them has spoken")
        engine.kill()
        killed = time.monotonic()
        eventually(lambda: daemon.metric("rrpa_engines_attached") == 0, what="it is dropped")
        for thread in asking:
            thread.join()
        took_s = time.monotonic() - killed
    print(f"{took_s:.3f} s")
    assert took_s < DROPPED_WITHIN_S
    check_broken(caller, answers)
    eventually(lambda: not daemon.segments(), what="the lost files are gone")
    eventually(lambda: not list(daemon.shm_dir.glob("rrpa_table_*")), what="its table too")
    with ReplayEngine(daemon, capacity=4):
        assert caller.ask(replay([b"and ", b"on"])).data == b"and on"
    caller.close()


def frames_of(daemon: Daemon) -> float:
    return sum(v for k, v in daemon.metrics().items() if k.startswith("rrpa_frames_total"))


def check_broken(caller: Caller, answers: list[Answer]) -> None:
    """Neither answer looks complete; the one that had begun keeps its bytes where they show."""
    assert len(answers) == 2
    assert not any(answer.complete for answer in answers)
    if isinstance(caller, GrpcCaller):
        assert {answer.code for answer in answers} == {"UNAVAILABLE"}
        assert sorted(answer.data for answer in answers) == [b"", b"half "]
        assert sorted(answer.trailers["rrpa-offset"][0] for answer in answers) == ["0", "5"]
    else:
        # 200 had been said with the first byte; that curl fails is all that HTTP can tell.
        assert sorted(answer.code for answer in answers) == ["200", "503"]


def test_engine_that_sees_another_directory_is_refused_in_a_sentence(
    lonely: Stack, short_dir: pathlib.Path
) -> None:
    engine = ReplayEngine(lonely.daemon, shm_dir=short_dir)
    engine.launch()
    assert engine.wait() == 1
    engine.stop()
    (line,) = engine.stderr.splitlines()
    assert "engine's shared memory is not the sidecar's" in line
    assert f"engine uses {short_dir}"[:40] in line
    assert "mount the same volume into both" in line
    assert not list(short_dir.iterdir())
    assert lonely.daemon.metric("rrpa_engines_attached") == 0


def test_the_default_directory_dev_shm_carries_streams_and_is_left_clean() -> None:
    """The other tests have directories of their own; this one goes through posix_ipc."""
    with Daemon(shm_dir="/dev/shm", stream_bytes="1MiB") as daemon:
        with (
            ReplayEngine(daemon) as engine,
            grpc.insecure_channel(daemon.grpc_address) as channel,
        ):
            stub = rrpa_pb2_grpc.RRPAServiceStub(channel)
            call = stub.CreateStream(replay([b"in ", b"/dev/shm"], delays_s=[0, 0.5]), timeout=20)
            assert next(call).data == b"in "
            name = dict(call.initial_metadata())["rrpa-stream-id"]
            path = pathlib.Path("/dev/shm", f"rrpa_{name}")
            assert stat.S_IMODE(path.stat().st_mode) == 0o640
            assert path.stat().st_size == 1 << 20
            assert collect(call).data == b"/dev/shm"
            eventually(lambda: not path.exists(), what="the file is gone")
            held = [each for each in engine.descriptors() if "/rrpa_" in each]
            assert any("rrpa_table_" in each for each in held)
        assert not [each for each in held if pathlib.Path(each).exists()]
