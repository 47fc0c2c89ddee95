"""What the tests of faults play on: puppets, callers, own file systems and control groups."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from rrpa_sidecar.pb import rrpa_pb2 as pb
from rrpa_sidecar.shm.memory import ControlGroup, groups_of
from tests.harness.processes import Daemon, Process, ProcessFailed, eventually

STREAM = "/rrpa.v1.RRPAService/CreateStream"
REQUEST = pb.CreateStreamRequest(model="test", prompt="hi").SerializeToString()
MIB = 1024 * 1024

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts, groups, users")


def prefixed(process: Process, prefix: Sequence[str]) -> None:
    """Have `process` started through another command that becomes it."""
    process.argv = [*prefix, *process.argv]


class Puppet(Process):
    """`tests.faults.puppet`, attached to `daemon`; see there for what it can be told."""

    def __init__(self, daemon: Daemon, capacity: int = 8, prefix: Sequence[str] = ()):
        argv = [sys.executable, str(Path(__file__).with_name("puppet.py"))]
        argv += [daemon.engine_socket, str(daemon.shm_dir), str(capacity)]
        super().__init__([*prefix, *argv], ready="puppet ready")
        self._lines = b""

    def launch(self) -> None:
        ours, theirs = os.pipe()
        self._stdin_fd = theirs
        self._child = subprocess.Popen(
            self.argv,
            stdin=ours,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "GRPC_VERBOSITY": "NONE"},
        )
        os.close(ours)

    def do(self, call: str, **arguments: Any) -> Any:
        """Return what the puppet answers; an error is its text."""
        os.write(self._stdin_fd, json.dumps({"call": call, **arguments}).encode() + b"\n")
        assert self._child is not None
        assert self._child.stdout is not None
        deadline = time.monotonic() + 20
        while b"\n" not in self._lines:
            left = max(deadline - time.monotonic(), 0)
            part = b""
            if select.select([self._child.stdout], [], [], left)[0]:
                part = os.read(self._child.stdout.fileno(), 65536)
            if not part:
                raise ProcessFailed(f"no answer to {call}; {self.returncode}; {self.said()}")
            self._lines += part
        line, _, self._lines = self._lines.partition(b"\n")
        answer = json.loads(line)
        return answer["error"] if isinstance(answer, dict) else answer

    def take(self, count: int = 1) -> list[str]:
        taken: list[str] = self.do("take", count=count)
        assert len(taken) == count
        return taken

    def write(self, job: str, token: bytes, repeat: int = 1) -> Any:
        return self.do("write", job=job, hexed=token.hex(), repeat=repeat)

    def stop(self, *args: Any, **kwargs: Any) -> int:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self._stdin_fd)  # its loop ends, and with it the engine
        if self.alive:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait(5)
        return super().stop(*args, **kwargs)


class Answer:
    """A call, read in gRPC's threads as it comes."""

    def __init__(self, call: Any) -> None:
        self._call = call

    @property
    def stream_id(self) -> str:
        return dict(self._call.initial_metadata())["rrpa-stream-id"]

    def read(self, size: int) -> bytes:
        """Return `size` bytes of it."""
        got = b""
        while len(got) < size:
            got += next(self._call).data
        assert len(got) == size
        return got

    def outcome(self) -> tuple[bytes, str, str]:
        """Return all bytes that are left, the code's name, and the text."""
        got = bytearray()
        with contextlib.suppress(grpc.RpcError):
            for frame in self._call:
                got += frame.data
        return bytes(got), self._call.code().name, self._call.details()


class Caller:
    """A client of `daemon`."""

    def __init__(self, address: str) -> None:
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.max_receive_message_length", -1),
        ]
        self._channel = grpc.insecure_channel(address, options=options)
        self._call = self._channel.unary_stream(STREAM, None, pb.CreateStreamResponse.FromString)

    def call(self, timeout: float = 15, **kwargs: Any) -> Answer:
        return Answer(self._call(REQUEST, timeout=timeout, **kwargs))

    def close(self) -> None:
        self._channel.close()


@contextlib.contextmanager
def caller_of(daemon: Daemon) -> Iterator[Caller]:
    made = Caller(daemon.grpc_address)
    try:
        yield made
    finally:
        made.close()


class SmallTmpfs:
    """A tmpfs of `size_bytes` that only processes started with `prefix` see.

    Its mount namespace goes with the process that holds it, however the test ends.
    """

    def __init__(self, size_bytes: int) -> None:
        self.path = tempfile.mkdtemp(dir="/tmp", prefix="rrpa-")
        script = (
            f"mount -t tmpfs -o size={size_bytes},mode=0770 tmpfs {self.path} && echo up && cat"
        )
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"up\n", "no tmpfs could be mounted"
        namespace = f"--mount=/proc/{self._holder.pid}/ns/mnt"
        self.prefix = ["nsenter", namespace, f"--wd={os.getcwd()}", "--"]
        self.inside = Path(f"/proc/{self._holder.pid}/root{self.path}")
        """The same directory, seen from outside."""

    def fill(self) -> None:
        """Leave not one free page. May be called again."""
        with (self.inside / "filler").open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(4096)):
                pass
        assert self.free_bytes() == 0

    def empty(self) -> None:
        (self.inside / "filler").unlink()

    def free_bytes(self) -> int:
        found = os.statvfs(self.inside)
        return found.f_bavail * found.f_frsize

    def close(self) -> None:
        self._holder.communicate()
        os.rmdir(self.path)


@contextlib.contextmanager
def small_tmpfs(size_bytes: int) -> Iterator[SmallTmpfs]:
    made = SmallTmpfs(size_bytes)
    try:
        yield made
    finally:
        made.close()


class TestGroup:
    """A memory group below this process's own, for processes started with `prefix`."""

    __test__ = False

    def __init__(self, parent: ControlGroup, limit_bytes: int) -> None:
        self.path = Path(tempfile.mkdtemp(dir=parent.folder, prefix="rrpa-test-"))
        self._files = parent
        self.limit(limit_bytes)
        self.prefix = ["sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$@"', "sh"]

    def limit(self, limit_bytes: int) -> None:
        (self.path / self._files.limit_file).write_text(str(limit_bytes))

    def used_bytes(self) -> int:
        return int((self.path / self._files.usage_file).read_text())

    def kept_bytes(self) -> int:
        """Return what is used without the caches of files, which the kernel would give up."""
        room = dataclasses.replace(self._files, folder=str(self.path)).room()
        assert room is not None
        return room.used_bytes

    def kills(self) -> int:
        """Return how often the kernel killed a process of the group."""
        for name in ("memory.oom_control", "memory.events"):
            with contextlib.suppress(FileNotFoundError):
                lines = (self.path / name).read_text().splitlines()
                return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
        raise AssertionError("nothing tells of kills")

    def close(self) -> None:
        def gone() -> bool:
            with contextlib.suppress(OSError):
                os.rmdir(self.path)
            return not self.path.exists()

        eventually(gone, what="the group is removed")


@contextlib.contextmanager
def memory_groups(*limits: int) -> Iterator[list[TestGroup]]:
    """Make a memory group for each of `limits`, bytes; skip the test where none can be made."""
    lines = [
        Path(f"/proc/self/{name}").read_text().splitlines() for name in ("cgroup", "mountinfo")
    ]
    own = next(groups_of(*lines), None)
    if own is None or not os.access(own.folder, os.W_OK):
        pytest.skip("no memory group can be made here")
    made: list[TestGroup] = []
    try:
        try:
            made += [TestGroup(own, limit) for limit in limits]
        except OSError as exc:
            pytest.skip(f"no memory group can be made here: {exc}")
        yield made
    finally:
        for each in made:
            each.close()


@contextlib.contextmanager
def removed_after(path: pathlib.Path) -> Iterator[pathlib.Path]:
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
