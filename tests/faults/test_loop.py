"""Nothing from outside stops the sidecar's one loop, and probes are answered while it is busy."""

from __future__ import annotations

import fcntl
import os
import pathlib
import threading
import time
from collections.abc import Iterator

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.conformance.asking import replay
from tests.faults.streams import Streams, channel
from tests.harness.paced_reader import STAMPED_TEXT, Plan, Readers
from tests.harness.processes import Stack, eventually

SOURCE = pathlib.Path(__file__).parent.parent.parent / "src" / "rrpa_sidecar"
LATE_S = 1.5
STREAMS = 300
PROBE_TIMEOUT_S = 1.0
ALIVE, READY = "", "rrpa.v1.RRPAService"


@pytest.fixture(params=["grpcio", "batched"])
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    daemon = {"listen_frontend": request.param, "stream_bytes": "256KiB"}
    with Stack(daemon, engine={"capacity": 64}) as running:
        yield running


def hold(fd: int, until: threading.Event) -> None:
    """Take a file's lock as soon as its writer gives it up, and keep it for a while."""
    fcntl.flock(fd, fcntl.LOCK_SH)
    until.wait()
    os.close(fd)


def test_locks_that_others_hold_on_its_files_delay_no_stream_and_no_file_stays(
    stack: Stack,
) -> None:
    """field-bugs.md G39."""
    daemon = stack.daemon
    short = replay([b"soon "], repeat=40, between_s=0.03)
    paced = replay([b"word "], repeat=100, between_s=0.025)
    release = threading.Event()
    with Streams(daemon.grpc_address, [short] * 25 + [paced] * 25) as streams:
        ids = streams.wait_open()
        streams.wait_frames(1)
        paths = [daemon.shm_dir / f"rrpa_{each}" for each in ids[:25]]
        files = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths]
        holders = [threading.Thread(target=hold, args=(each, release)) for each in files]
        for each in holders:
            each.start()
        begun_s = time.monotonic()
        answers = streams.result()
        assert time.monotonic() - begun_s < 2.5 + LATE_S
        assert {(each.code, each.data) for each in answers[25:]} == {("OK", b"word " * 100)}
        assert {each.code for each in answers} == {"OK"}
    assert daemon.segments(), "a file that somebody has locked is left"
    release.set()
    for each in holders:
        each.join()
    eventually(lambda: not daemon.segments(), what="no file is left")


def is_serving(stub: health_pb2_grpc.HealthStub, name: str) -> bool:
    """Ask as a probe does; one that takes longer is a failed one."""
    answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=PROBE_TIMEOUT_S)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@pytest.mark.timeout(60)
def test_probes_are_answered_in_time_under_load_and_while_there_is_no_engine(
    tmp_path: pathlib.Path,
) -> None:
    """field-bugs.md G52. No engine: not ready, and still alive."""
    text = tmp_path / "text"
    text.write_bytes(STAMPED_TEXT)
    engine = {"capacity": STREAMS, "model": "stamped", "stamp": True, "text_file": text}
    daemon = {"stream_bytes": "128KiB", "shm_bytes": STREAMS * 128 * 1024}
    took_s: list[float] = []
    with (
        Stack(daemon, engine={**engine, "tokens_per_second": 20}) as stack,
        channel(stack.daemon.grpc_address) as opened,
    ):
        stub = health_pb2_grpc.HealthStub(opened)
        plan = Plan(stack.daemon.envoy_socket, stamped_calls=STREAMS, stamped_tokens=60)
        with Readers([plan], 50) as readers:
            eventually(lambda: stack.daemon.metric("rrpa_active_streams") == STREAMS, 20)
            while stack.daemon.metric("rrpa_active_streams") > STREAMS / 2:
                begun_s = time.monotonic()
                assert is_serving(stub, READY)
                took_s.append(time.monotonic() - begun_s)
                time.sleep(0.02)
            report = readers.result(50)
        assert report.faults == []
        assert stack.engine is not None
        stack.engine.kill()
        eventually(lambda: not is_serving(stub, READY), what="it is not ready")
        assert is_serving(stub, ALIVE)
    print(f"{len(took_s)} probes, the longest took {max(took_s):.3f} s")
    assert len(took_s) > 20


def test_no_connection_is_ever_recycled_under_its_streams() -> None:
    """field-bugs.md G40: no age makes a server say GOAWAY."""
    assert not [path for path in SOURCE.rglob("*.py") if "connection_age" in path.read_text()]
