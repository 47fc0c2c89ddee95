"""Jobs on their way from the background thread to the engine's loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Condition

from rrpa_sidecar.engine.job import Job
from rrpa_sidecar.errors import AttachRefused


class Inbox:
    """Where the engine's loop waits. Thread-safe.

    A job stays here while `capacity` others are open: a sidecar submits no more than that, but
    another one that drains, or was lost, has jobs of its own running.

    serving: attached now. stopping: no more jobs are taken in. refused: why none ever will be.
    """

    def __init__(self, capacity: int) -> None:
        """capacity: most jobs that the loop has at once."""
        self.serving = False
        self.stopping = False
        self.refused: AttachRefused | None = None
        self._changed = Condition()
        self._jobs: deque[Job] = deque()
        self._capacity = capacity
        self._taken: set[Job] = set()
        self._news = False

    # The loop's side; each call raises AttachRefused once the sidecar refused the engine.

    def take(self) -> Job | None:
        """Wait for the next job; None once stopping."""
        with self._changed:
            self._wait(self._ready, None)
            if self.stopping:
                return None
            job = self._jobs.popleft()
            self._taken.add(job)
            return job

    def take_all(self) -> list[Job]:
        """Return all jobs there is room for; never waits."""
        if not self._jobs and self.refused is None:  # the common case, without the lock
            return []
        self._raise_if_refused()
        jobs = []
        with self._changed:
            while self._ready():
                jobs.append(self._jobs.popleft())
                self._taken.add(jobs[-1])
        return jobs

    def wait_news(self, timeout_s: float | None) -> bool:
        """Wait for a job or news; forget the news."""
        with self._changed:
            there_is = self._wait(lambda: self._news or self._ready(), timeout_s)
            self._news = False
            return there_is

    def wait_serving(self, timeout_s: float | None) -> bool:
        """Wait until attached or stopping; return whether attached."""
        with self._changed:
            self._wait(lambda: self.serving, timeout_s)
            return self.serving

    def over(self, job: Job) -> None:
        """Note that `job` has ended: there may be room for another."""
        with self._changed:
            self._taken.discard(job)
            if self._jobs:
                self._changed.notify_all()

    # The background thread's side.

    def put(self, job: Job) -> bool:
        """Add a job; False when stopping."""
        with self._changed:
            if self.stopping:
                return False
            self._jobs.append(job)
            self._changed.notify_all()
            return True

    def discard(self, job: Job) -> bool:
        """Take `job` back; return whether the loop had not yet taken it. Counts as news."""
        with self._changed:
            untaken = job in self._jobs
            if untaken:
                self._jobs.remove(job)
            self._news = True
            self._changed.notify_all()
        return untaken

    def stop(self) -> list[Job]:
        """Take no more jobs; return those that nobody took."""
        with self._changed:
            self.stopping = True
            self._changed.notify_all()
            return self._emptied()

    def set_serving(self, serving: bool) -> None:
        """Note that the engine was attached or detached."""
        with self._changed:
            self.serving = serving
            self._news = True
            self._changed.notify_all()

    def refuse(self, why: str) -> list[Job]:
        """Make every wait raise AttachRefused, from now on; return the jobs that nobody took."""
        with self._changed:
            self.refused = AttachRefused(why)
            self._changed.notify_all()
            return self._emptied()

    def wake(self) -> None:
        """Make `wait_news` return."""
        with self._changed:
            self._news = True
            self._changed.notify_all()

    def _ready(self) -> bool:
        return bool(self._jobs) and len(self._taken) < self._capacity

    def _emptied(self) -> list[Job]:
        jobs = list(self._jobs)
        self._jobs.clear()
        return jobs

    def _wait(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        there_is = self._changed.wait_for(
            lambda: ready() or self.stopping or self.refused is not None, timeout_s
        )
        self._raise_if_refused()
        return there_is

    def _raise_if_refused(self) -> None:
        if self.refused is not None:
            raise AttachRefused(str(self.refused))
