"""The demo's processes: started together, watched, ended together, whatever happens."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self, TypeVar

from rrpa_sidecar.config import ENV_PREFIX
from rrpa_sidecar.errors import StartupError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends a demo."""

STOP_TIMEOUT_S = 10.0
POLL_S = 0.05
TAIL_LINES = 15

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


T = TypeVar("T")


class ChildFailed(StartupError):
    """A process ended or was not ready in time; the text holds the end of its stderr."""


class Child:
    """One process. Its stderr lies in a file, its stdout is read for the line `ready`."""

    def __init__(self, name: str, argv: list[str], stderr: pathlib.Path) -> None:
        self.name = name
        self._stderr = stderr
        with stderr.open("wb") as file:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=file,
                # A Ctrl-C is for the demo alone; it ends its children in order.
                start_new_session=True,
                env=_environment(),
                # Even a killed demo leaves no process behind.
                preexec_fn=lambda: _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
            )

    def check(self) -> None:
        """Raise ChildFailed if the process has ended."""
        code = self._process.poll()
        if code is not None:
            how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
            raise ChildFailed(f"{self.name} ended by itself ({how}); {self._said()}")

    def wait_line(self, beginning: str, timeout_s: float) -> str:
        """Return the first line on stdout that begins so."""
        assert self._process.stdout is not None
        text = b""

        def found() -> str | None:
            nonlocal text
            assert self._process.stdout is not None
            if select.select([self._process.stdout], [], [], 0)[0]:
                text += os.read(self._process.stdout.fileno(), 65536)
            whole = text.decode("utf-8", "replace").split("\n")[:-1]
            return next((line for line in whole if line.startswith(beginning)), None)

        return self.wait(found, timeout_s)

    def wait(self, found: Callable[[], T | None], timeout_s: float) -> T:
        """Return what `found()` gives as soon as it is not None, while the process lives."""
        deadline = time.monotonic() + timeout_s
        while (value := found()) is None:
            self.check()
            if time.monotonic() > deadline:
                raise ChildFailed(f"{self.name} is not ready after {timeout_s:g} s; {self._said()}")
            time.sleep(POLL_S)
        return value

    def end(self) -> None:
        """Ask the process to end, and return at once."""
        if self._process.poll() is None:
            self._process.terminate()

    def reap(self, timeout_s: float) -> None:
        """Wait for the end; kill when it does not come."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()

    def _said(self) -> str:
        lines = self._stderr.read_text("utf-8", "replace").splitlines()[-TAIL_LINES:]
        return "\n  ".join(["its last words:", *lines]) if lines else "it said nothing"


def _environment() -> dict[str, str]:
    """Return ours without the settings of some other sidecar on this machine."""
    return {key: value for key, value in os.environ.items() if not key.startswith(ENV_PREFIX)}


class Household:
    """A private directory, one in shared memory, and the processes that use them.

    Leaving it ends the processes, the latest first, and removes the directories.
    """

    def __init__(self) -> None:
        # Under /tmp and short: a socket's path may have 107 bytes, TMPDIR may be long.
        # The name tells whose it is.
        prefix = f"rrpa-demo-{os.getpid()}-"
        self.directory = pathlib.Path(tempfile.mkdtemp(dir="/tmp", prefix=prefix))
        self.shm_directory = pathlib.Path(_memory_directory(prefix, self.directory))
        self._children: list[Child] = []

    def start(self, name: str, argv: list[str]) -> Child:
        """Start a process."""
        child = Child(name, argv, self.directory / f"{len(self._children)}.stderr")
        self._children.append(child)
        return child

    def check(self, within_s: float = 0.0) -> None:
        """Raise ChildFailed if one of the processes has ended, or ends within that time."""
        deadline = time.monotonic() + within_s
        while True:
            for child in self._children:
                child.check()
            if time.monotonic() >= deadline:
                return
            time.sleep(POLL_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with _deaf():
            for child in reversed(self._children):
                child.end()
            deadline = time.monotonic() + STOP_TIMEOUT_S
            for child in reversed(self._children):
                child.reap(max(deadline - time.monotonic(), 0))
            shutil.rmtree(self.shm_directory, ignore_errors=True)
            shutil.rmtree(self.directory, ignore_errors=True)


def _memory_directory(prefix: str, otherwise: pathlib.Path) -> str:
    try:
        return tempfile.mkdtemp(dir="/dev/shm", prefix=prefix)
    except OSError:
        return tempfile.mkdtemp(dir=otherwise, prefix="shm-")


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Let no second Ctrl-C stop the cleaning up."""
    before = [signal.signal(number, signal.SIG_IGN) for number in SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)
