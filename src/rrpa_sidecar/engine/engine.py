"""Attach to the sidecar of this node and receive jobs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Self

from rrpa_sidecar.engine.attacher import Attacher
from rrpa_sidecar.engine.bell import StepBell
from rrpa_sidecar.engine.files import OwnFiles
from rrpa_sidecar.engine.identity import Identity, check_socket_path, checked_identity
from rrpa_sidecar.engine.inbox import Inbox
from rrpa_sidecar.engine.job import Job
from rrpa_sidecar.engine.over import Cause
from rrpa_sidecar.shm.directory import SegmentDirectory, open_directory

CLOSE_GRACE_S = 1.0
"""How long a closing engine lets the sidecar read and remove its ended logs."""


def attach(
    engine_socket: str = "/tmp/rrpa.sock",
    *,
    models: Sequence[str],
    capacity: int = 1,
    name: str | None = None,
    build: str = "",
    shm_dir: str = "/dev/shm",
) -> Engine:
    """Attach to the sidecar and return the engine's end. Use it in a `with` statement.

    Returns at once. A background thread dials until the sidecar is there, and again whenever
    it went away. What an engine does when the sidecar dies, restarts or is replaced: nothing. Its
    jobs go on, the library tells the next sidecar of them, and no byte is lost.

    engine_socket: the sidecar's `--engine-socket`.
    models: names that clients ask for.
    capacity: most jobs at once.
    name: a label for logs and error texts; absent: "engine-<pid>".
    build: free text about the build, for people.
    shm_dir: the sidecar's `--shm-dir`; both processes need the same mount there.

    Raises:
      ValueError: an argument breaks a rule; the text says which.
      StartupError: the shared-memory directory is missing or not writable.
    """
    identity = checked_identity(name or f"engine-{os.getpid()}", models, capacity, build)
    check_socket_path(engine_socket)
    return Engine(identity, open_directory(shm_dir), engine_socket)


class Engine:
    """The engine's end of an attachment. All methods may be called from any thread.

    Where a method raises AttachRefused, the sidecar will never take this engine as it is, and
    the text says why; the engine's process had better end with it.
    """

    def __init__(self, identity: Identity, directory: SegmentDirectory, engine_socket: str) -> None:
        self.identity = identity
        self._files = OwnFiles(directory)
        self._bell = StepBell()
        self._pid = os.getpid()
        self._inbox = Inbox(identity.capacity)
        self._attacher = Attacher(
            identity, directory, engine_socket, self._inbox, self._bell, self._files
        )

    @property
    def serving(self) -> bool:
        """Attached now; jobs may come."""
        return self._inbox.serving

    @property
    def stopping(self) -> bool:
        """`stop` was called: leave the `with` block."""
        return self._inbox.stopping

    def jobs(self) -> Iterator[Job]:
        """Yield each job as it comes, waiting in between; ends when the engine is stopped.

        Several threads may each iterate; a job goes to one of them.

        Raises:
          AttachRefused: see the class.
        """
        while (job := self._inbox.take()) is not None:
            yield job

    def poll(self) -> list[Job]:
        """Return the jobs that came since the last call; never waits.

        Not more than `capacity` are open at once, whatever sidecars say: the others wait.

        Raises:
          AttachRefused: see the class.
        """
        return self._inbox.take_all()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until there is something to look at; return False when the time ran out.

        That is: a new job, a job that was cancelled, attached, detached, `wake`, or `stop`.

        Raises:
          AttachRefused: see the class.
        """
        return self._inbox.wait_news(timeout_s)

    def wait_serving(self, timeout_s: float | None = None) -> bool:
        """Wait until attached; return whether it is. Returns early when the engine is stopped.

        Raises:
          AttachRefused: see the class.
        """
        return self._inbox.wait_serving(timeout_s)

    def step(self) -> AbstractContextManager[None]:
        """Return a block in which all writes and ends of this thread ring the bell once.

        Bytes are committed by each `write` as always; the bell rings when the block ends. One
        thread at a time may be in such a block; writes of other threads ring at once.
        """
        return self._bell

    def wake(self) -> None:
        """Make `wait` return in the engine's loop."""
        self._inbox.wake()

    def stop(self) -> None:
        """Begin to stop: `jobs` ends, running jobs are cancelled, waiting ones are refused."""
        untaken = self._inbox.stop()
        for job in self._attacher.open_jobs():
            job.cancel(Cause.STOPPING)
        for job in untaken:
            job.abandon()

    def close(self) -> None:
        """Detach and leave nothing behind: no thread, no file. Idempotent.

        Jobs that are still open end with UNAVAILABLE; no other thread may use them any more.
        Waits up to a second for the sidecar to read what was written last. The ended logs of
        resumable jobs stay, also where no sidecar is there: the next one removes them when
        their time is over.

        In a forked child nothing happens: the jobs are its parent's.
        """
        if os.getpid() != self._pid:
            return
        self.stop()
        for job in self._attacher.open_jobs():
            job.abandon()
        until = time.monotonic() + CLOSE_GRACE_S
        while self._attacher.attached and not self._files.rest_gone() and time.monotonic() < until:
            time.sleep(0.02)
        self._attacher.close()
        self._files.release_rest()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
