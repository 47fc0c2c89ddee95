"""The wall clock jumps by an hour under sidecar and engine; nothing notices (field-bugs.md G63)."""

from __future__ import annotations

import ast
import os
import pathlib
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.conformance.asking import replay
from tests.daemon.conftest import STREAM as CREATE_STREAM
from tests.faults.streams import Streams
from tests.harness import raw_h2
from tests.harness.processes import Daemon, ReplayEngine, eventually

HERE = pathlib.Path(__file__).parent
SOURCE = HERE.parent.parent / "src" / "rrpa_sidecar"
HOUR_S = 3600
WORD = b"word "
TOKENS = 60
DEADLINE_MS = 1500
WALL_CLOCK = {"time.time", "time.time_ns", "datetime.now", "datetime.datetime.now"}
STAMPS = {"st_mtime", "st_mtime_ns", "st_ctime", "st_ctime_ns", "st_atime", "st_atime_ns"}
MAY_READ_IT = {"edge/certificate.py"}
"""A certificate has dates."""


@pytest.fixture(scope="module")
def jumping(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A library to preload."""
    made = tmp_path_factory.mktemp("clock") / "faketime.so"
    compiler = os.environ.get("CC", "cc")
    argv = [compiler, "-O1", "-shared", "-fPIC", "-o", str(made), str(HERE / "faketime.c")]
    try:
        subprocess.run(argv, check=True)
    except FileNotFoundError:
        pytest.skip("there is no C compiler: install gcc and libc6-dev")
    return made


class Clock:
    """The wall clock of the processes that have `env`."""

    def __init__(self, library: pathlib.Path, file: pathlib.Path) -> None:
        self._file = file
        self.env = {"LD_PRELOAD": str(library), "RRPA_TEST_CLOCK": str(file)}
        self.jump(0)

    def jump(self, seconds: int) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(self._file)


@pytest.fixture
def clock(jumping: pathlib.Path, short_dir: pathlib.Path) -> Clock:
    return Clock(jumping, short_dir / "clock")


@pytest.fixture(params=["grpcio", "batched"])
def daemon(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Daemon]:
    with (
        Daemon(env=clock.env, listen_frontend=request.param, stream_bytes="256KiB") as running,
        ReplayEngine(running, env=clock.env, capacity=8),
    ):
        yield running


@pytest.mark.parametrize("hours", [1, -1])
def test_no_stream_deadline_or_latency_changes_when_the_wall_clock_jumps(
    daemon: Daemon, clock: Clock, hours: int
) -> None:
    paced = replay([WORD], repeat=TOKENS, between_s=0.02)
    silent = replay([WORD], delay_s=60).SerializeToString()
    with (
        Streams(daemon.grpc_address, [paced] * 4) as streams,
        raw_h2.Connection(daemon.grpc_address) as peer,
    ):
        streams.wait_frames(3)
        begun_s = time.monotonic()
        # Only the server knows of this deadline.
        late = peer.call(CREATE_STREAM, silent, [(b"grpc-timeout", f"{DEADLINE_MS}m".encode())])
        eventually(lambda: daemon.metric("rrpa_active_streams") == 5, what="all are open")
        for jump_s in (hours * HOUR_S, 0, hours * HOUR_S):
            clock.jump(jump_s)
            time.sleep(0.2)
        frames = peer.answer(late)
        took_s = time.monotonic() - begun_s
        answers = streams.result()
    assert raw_h2.field(frames, b"grpc-status") == b"4"
    assert DEADLINE_MS / 1000 - 0.05 < took_s < DEADLINE_MS / 1000 + 1
    assert {(answer.code, answer.data) for answer in answers} == {("OK", WORD * TOKENS)}
    for name, value in daemon.metrics().items():
        assert value >= 0, name
        if name.endswith("_seconds_sum"):
            assert value < 5 * took_s, name


def test_durations_and_staleness_are_never_told_by_the_wall_clock() -> None:
    found = [
        f"{where}:{node.lineno} reads {ast.unparse(node)}"
        for path in SOURCE.rglob("*.py")
        if (where := path.relative_to(SOURCE).as_posix()) not in MAY_READ_IT
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and (ast.unparse(node) in WALL_CLOCK or node.attr in STAMPS)
    ]
    assert not found, "\n".join(found)
