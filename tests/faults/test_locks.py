"""Locks that others hold on the sidecar's files stop nothing; nobody forks (field-bugs.md G39)."""

from __future__ import annotations

import ast
import fcntl
import os
import pathlib
import re
import threading
from collections.abc import Iterator

import pytest

from tests.conformance.asking import replay
from tests.faults.streams import Streams
from tests.harness.processes import Stack, eventually

SOURCE = pathlib.Path(__file__).parent.parent.parent / "src" / "rrpa_sidecar"
STARTS_A_PROCESS = re.compile(
    r"os\.(fork|forkpty|posix_spawnp?|popen|system|spawn\w+|exec\w+)"
    r"|(asyncio|loop)\.(create_subprocess_\w+|subprocess_\w+)"
)


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
        answers = streams.result()  # all of them, while the locks are held
        assert {(each.code, each.data) for each in answers[25:]} == {("OK", b"word " * 100)}
        assert {each.code for each in answers} == {"OK"}
    assert daemon.segments(), "a file that somebody has locked is left"
    release.set()
    for each in holders:
        each.join()
    eventually(lambda: not daemon.segments(), what="no file is left")


def test_no_code_of_sidecar_or_engine_starts_a_process_or_waits_for_a_lock() -> None:
    """What starts processes by `subprocess` is in tests/test_layers.py."""
    found = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            waits = called in ("fcntl.flock", "fcntl.lockf") and not re.search(
                r"LOCK_NB|LOCK_UN", ast.unparse(node)
            )
            if waits or STARTS_A_PROCESS.fullmatch(called):
                found.append(f"{path.relative_to(SOURCE)}:{node.lineno} {ast.unparse(node)}")
    assert not found, "\n".join(found)
