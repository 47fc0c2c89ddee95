"""Real processes for a benchmark: started with a log, ended by their id, none left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.building import BUILD
from benchmarks.machine import ROOT
from benchmarks.plan import BenchmarkFailed

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.005
QUOTED = 300
"""Most characters of its last line in an error text."""

Ready = str | Callable[[], object]
"""A line on stdout that begins so, or a condition that becomes true."""


class Child:
    """One process, in a session of its own: a Ctrl-C reaches the harness alone, which ends it."""

    def __init__(self, process: subprocess.Popen[bytes], name: str, out: Path, log: Path) -> None:
        self._process = process
        self.name = name
        self.out = out
        self.log = log
        self.ready_line = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def last_words(self) -> str:
        """Return the last line it has written; all of it is kept, its files go with the run."""
        said = b"".join(path.read_bytes() for path in (self.out, self.log))
        BUILD.mkdir(exist_ok=True)
        kept = BUILD / f"{self.name}.failed.log"
        kept.write_bytes(said)
        lines = said.decode("utf-8", "replace").split("\n")
        words = [line.strip() for line in lines if line.strip()] or ["it said nothing"]
        return f"{words[-1][:QUOTED]}; all of it: {kept.relative_to(ROOT)}"

    def expect_alive(self) -> None:
        if not self.alive:
            raise self._ended_wrong()

    def expect_ended_well(self) -> None:
        """Raises BenchmarkFailed, quoting the process, unless its exit code is 0."""
        if self._process.poll() != 0:
            raise self._ended_wrong()

    def _ended_wrong(self) -> BenchmarkFailed:
        return BenchmarkFailed(
            f"{self.name} ended with {self._process.returncode}: {self.last_words()}"
        )

    def wait_ready(self, ready: Ready, timeout_s: float) -> None:
        """Raises BenchmarkFailed, quoting the process, if it ends or takes too long."""
        deadline = time.monotonic() + timeout_s
        while not self._is_ready(ready):
            self.expect_alive()
            if time.monotonic() > deadline:
                raise BenchmarkFailed(
                    f"{self.name} not ready in {timeout_s} s: {self.last_words()}"
                )
            time.sleep(POLL_S)

    def _is_ready(self, ready: Ready) -> bool:
        if callable(ready):
            return bool(ready())
        *lines, _ = self.out.read_text("utf-8", "replace").split("\n")
        for line in lines:
            if line.startswith(ready):
                self.ready_line = line
                return True
        return False

    def stop(self) -> None:
        """SIGTERM; after a while SIGKILL, to whatever it started too."""
        if self.alive:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_S)
        # Its session is its own, so this group holds nothing but it and what it started.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


def start(
    stack: ExitStack,
    argv: Sequence[str],
    *,
    name: str,
    workdir: Path,
    ready: Ready = "",
    timeout_s: float = READY_TIMEOUT_S,
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
) -> Child:
    """Start a process that ends with `stack`, and wait until it is ready.

    name: of its logs in `workdir`, name.out and name.log; unique there.
    Raises BenchmarkFailed, quoting the process, if it ends or takes too long.
    """
    out, log = workdir / f"{name}.out", workdir / f"{name}.log"
    with out.open("wb") as stdout, log.open("wb") as stderr:
        process = subprocess.Popen(
            [*_dies_with_us(), *argv],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**_environment(), "PYTHONUNBUFFERED": "1", **(env or {})},
            cwd=cwd,
            start_new_session=True,
        )
    child = Child(process, name, out, log)
    stack.callback(child.stop)
    if ready:
        child.wait_ready(ready, timeout_s)
    return child


def _environment() -> dict[str, str]:
    """Return ours without the product's settings, which would be measured without a word."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RRPA_")}


def private_prefix() -> str:
    """Return how the names of this run's own directories begin, in /tmp and /dev/shm."""
    return f"rrpa-bench-{os.getpid()}-"


def _dies_with_us() -> list[str]:
    """Return a prefix that has the kernel end the child even when the harness is killed."""
    found = shutil.which("setpriv")
    return [found, "--pdeathsig", "KILL", "--"] if found else []
