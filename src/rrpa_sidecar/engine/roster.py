"""Which jobs are not over, and to which attachment each belongs."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from rrpa_sidecar.engine.connection import Connection
from rrpa_sidecar.engine.inbox import Inbox
from rrpa_sidecar.engine.job import Job


class Roster:
    """The engine's jobs and attachments. Thread-safe.

    Of the attachments at most one takes new jobs, the *latest*; the others drain. A job whose
    attachment is lost goes on and is announced once on the next one, or on the latest that is
    there already; from then on it belongs to that.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._lock = Lock()
        self._jobs: dict[str, Job] = {}
        self._connections: list[Connection] = []
        self._latest: Connection | None = None
        self._closed = False

    @property
    def attached(self) -> bool:
        """Whether there is a sidecar, one that drains included."""
        return any(connection.listens for connection in self.connections())

    def jobs(self) -> list[Job]:
        """Return every job that is not over, and those whose refusal no sidecar has heard."""
        return list(self._jobs.values())

    def homeless(self) -> list[Job]:
        """Return the jobs that belong to no sidecar now."""
        return [job for job in self.jobs() if job.connection.lost]

    def connections(self) -> list[Connection]:
        """Return every attachment and attempt at one."""
        return list(self._connections)

    def job(self, connection: Connection, stream_id: str) -> Job | None:
        """Return the job of this id if it belongs to `connection`."""
        job = self._jobs.get(stream_id)
        return job if job is not None and job.connection is connection else None

    def add(self, job: Job) -> None:
        self._jobs[job.stream_id] = job

    def over(self, job: Job) -> None:
        """Note that `job` has ended."""
        self._inbox.over(job)
        if not job.unheard:
            self._jobs.pop(job.stream_id, None)

    def attach(self, dial: Callable[[list[Job]], Connection]) -> Connection | None:
        """Have `dial` make the latest attachment, and announce there; None: closed.

        dial: gets the jobs to announce. What it raises passes through, and nothing has changed.
        """
        with self._lock:
            if self._closed:
                return None
            homeless = self.homeless()
            connection = dial(homeless)
            self._connections.append(connection)
            self._latest = connection
            self._settle(homeless, connection)
        return connection

    def welcome(self, connection: Connection) -> None:
        """Note that the sidecar took this engine, and has read what was announced."""
        with self._lock:
            connection.welcomed = True
            self._settle([job for job in self.jobs() if job.connection is connection], connection)

    def drain(self, connection: Connection) -> None:
        """Note that `connection` takes no new jobs and keeps those it has."""
        with self._lock:
            connection.draining = True
            self._latest = None

    def lose(self, connection: Connection) -> None:
        """Note that `connection` is over: announce its jobs on the latest one, if there is one."""
        with self._lock:
            connection.lost = True
            self._connections.remove(connection)
            if self._latest is connection:
                self._latest = None
            if self._latest is not None:
                homeless = self.homeless()
                self._latest.announce(homeless)
                self._settle(homeless, self._latest)

    def close(self) -> list[Connection]:
        """Take no more attachments; return those there are."""
        with self._lock:
            self._closed = True
            return self.connections()

    def _settle(self, jobs: list[Job], connection: Connection) -> None:
        for job in jobs:
            job.belong_to(connection)
            if job.over:
                self.over(job)
