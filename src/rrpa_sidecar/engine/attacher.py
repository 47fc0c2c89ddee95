"""The background threads that keep an engine attached."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from random import Random
from threading import Event, Lock, Thread

import grpc

from rrpa_sidecar.engine.backoff import Backoff
from rrpa_sidecar.engine.bell import StepBell
from rrpa_sidecar.engine.connection import Connection
from rrpa_sidecar.engine.files import OwnFiles
from rrpa_sidecar.engine.identity import Identity
from rrpa_sidecar.engine.inbox import Inbox
from rrpa_sidecar.engine.job import Job
from rrpa_sidecar.engine.over import Cause
from rrpa_sidecar.engine.roster import Roster
from rrpa_sidecar.errors import AttachRefused, RRPAError
from rrpa_sidecar.pb import engine_pb2
from rrpa_sidecar.shm.directory import SegmentDirectory
from rrpa_sidecar.shm.doorbell import Ringer

HANG_UP_S = 1.0
"""How long the sidecar has to end the call after the engine hung up."""
NEWS_AFTER_S = 5.0
"""How long after a line in the log another reason is worth another line."""
REFUSALS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""Answers to Hello that trying again will not change."""
DRAINING = "draining"
"""Why there is no sidecar, for a while and as it should be."""

log = logging.getLogger(__name__)


class Attacher:
    """Dials, says Hello, obeys, and begins again when the call ends.

    One thread dials. When the sidecar says Draining, that thread stays with the attachment
    until its end, and another one dials from then on.
    """

    def __init__(
        self,
        identity: Identity,
        directory: SegmentDirectory,
        engine_socket: str,
        inbox: Inbox,
        bell: StepBell,
        files: OwnFiles,
    ) -> None:
        self._identity = identity
        self._directory = directory
        self._engine_socket = engine_socket
        self._inbox = inbox
        self._bell = bell
        self._files = files
        self._roster = Roster(inbox)
        self._backoff = Backoff(Random())
        self._told = ""
        self._told_at_s = 0.0
        self._closed = Event()
        self._starting = Lock()
        self._threads: list[Thread] = []
        self._start(self._run)

    @property
    def attached(self) -> bool:
        """Whether there is a sidecar, one that drains included."""
        return self._roster.attached

    def open_jobs(self) -> list[Job]:
        """Return every job that is not over, whether or not there is a sidecar."""
        return self._roster.jobs()

    def close(self) -> None:
        """Detach and end the threads. Idempotent."""
        self._closed.set()
        for connection in self._roster.close():
            connection.hang_up()
        self._join()
        for connection in self._roster.connections():
            connection.abort()
        self._join()

    def _start(self, target: Callable[[], None]) -> None:
        thread = Thread(target=target, name="rrpa-engine", daemon=True)
        with self._starting:
            thread.start()
            self._threads = [*filter(Thread.is_alive, self._threads), thread]

    def _join(self) -> None:
        until_s = time.monotonic() + HANG_UP_S
        with self._starting:  # only what was started can be joined
            threads = self._threads
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _run(self) -> None:
        while not self._closed.is_set():
            self._drop_late()
            # A look costs no table and no dial, so there can be many of them.
            nobody = _nobody_there(self._engine_socket)
            try:
                why = nobody or self._attach_once()
            except AttachRefused as exc:
                if not self._roster.attached:
                    self._give_up(exc)
                    return
                why = str(exc)  # the one that drains still delivers what its jobs write
            if why is None or self._closed.is_set():
                return
            self._tell(why)
            self._closed.wait(self._backoff.next_s(only_looked=bool(nobody)))

    def _run_beside(self) -> None:
        """Dial after a sidecar began to drain: its successor comes up now."""
        self._closed.wait(self._backoff.next_s())
        self._run()

    def _attach_once(self) -> str | None:
        """Attach and obey until the call ends; return why it ended. None: do not dial again.

        Raises:
          AttachRefused: there is no point in trying again.
        """
        try:
            connection = self._roster.attach(self._dial)
        except (RRPAError, OSError) as exc:  # no room, no descriptor, a cleaner that was faster
            return str(exc)
        if connection is None:
            return None
        try:
            why = self._obey_all(connection)
        finally:
            self._detach(connection)
        return None if connection.draining else why

    def _dial(self, announced: list[Job]) -> Connection:
        return Connection(self._identity, self._directory, self._engine_socket, announced)

    def _obey_all(self, connection: Connection) -> str:
        try:
            for command in connection.commands():
                self._obey(connection, command)
        except grpc.RpcError as exc:
            why = (exc.details() if isinstance(exc, grpc.Call) else "") or exc.code().name
            if not connection.welcomed and exc.code() in REFUSALS:
                raise AttachRefused(why) from exc
            return _nobody_there(self._engine_socket) or why
        except Exception as exc:  # the thread must outlive whatever this was
            log.exception("the attachment failed")
            return f"{type(exc).__name__}: {exc}"
        return "the sidecar ended the attachment"

    def _obey(self, connection: Connection, command: engine_pb2.Command) -> None:
        kind = command.WhichOneof("command")
        if kind == "submit":
            self._submit(connection, command.submit)
        elif kind == "cancel":
            self._cancel(self._roster.job(connection, command.cancel.stream_id), Cause.CLIENT_LEFT)
        elif kind == "adopt":
            self._adopt(connection, command.adopt)
        elif kind == "release":
            self._files.release(command.release.stream_id)
        elif kind == "welcome":
            self._welcome(connection, command.welcome)
        elif kind == "draining" and not connection.draining:
            self._drain(connection)

    def _welcome(self, connection: Connection, welcome: engine_pb2.Welcome) -> None:
        connection.stream_bytes = welcome.stream_bytes
        self._roster.welcome(connection)
        connection.ringer = Ringer(welcome.doorbell_path)
        # Connects now: the path is the successor's once this sidecar drains.
        connection.ringer.ring()
        self._bell.add(connection.ringer)
        self._backoff.reset()
        # Who reads warnings alone has read that there was no sidecar.
        level = logging.WARNING if self._told not in ("", DRAINING) else logging.INFO
        self._told = ""
        log.log(level, "attached to %s, version %s", self._engine_socket, welcome.sidecar_version)
        self._inbox.set_serving(True)

    def _submit(self, connection: Connection, submit: engine_pb2.Submit) -> None:
        job = Job(submit, connection, self._bell, self._files, self._roster.over)
        self._roster.add(job)
        if not self._inbox.put(job):
            job.cancel(Cause.STOPPING)
            job.abandon()

    def _adopt(self, connection: Connection, adopt: engine_pb2.Adopt) -> None:
        job = self._roster.job(connection, adopt.stream_id)
        if job is not None:
            job.adopt(adopt.slot if adopt.HasField("slot") else None)

    def _cancel(self, job: Job | None, cause: Cause) -> None:
        if job is None:
            return
        job.cancel(cause)
        if self._inbox.discard(job):
            job.abandon()

    def _drain(self, connection: Connection) -> None:
        self._roster.drain(connection)
        self._inbox.set_serving(False)
        self._note(DRAINING)
        log.info("the sidecar at %s is draining; attaching to its successor", self._engine_socket)
        self._start(self._run_beside)

    def _detach(self, connection: Connection) -> None:
        self._roster.lose(connection)
        if connection.ringer is not None:
            self._bell.remove(connection.ringer)
        connection.close()
        if connection.welcomed and not connection.draining:
            self._inbox.set_serving(False)

    def _drop_late(self) -> None:
        """Cancel the jobs without a sidecar whose clients have stopped waiting."""
        for job in self._roster.homeless():
            if job.late and not job.cancelled:
                self._cancel(job, Cause.TOO_LATE)

    def _give_up(self, refused: AttachRefused) -> None:
        untaken = self._inbox.refuse(str(refused))
        for job in self._roster.jobs():
            job.cancel(Cause.REFUSED)
        for job in untaken:
            job.abandon()

    def _tell(self, why: str) -> None:
        """Log why there is no sidecar: once, and again only for a reason that lasts.

        A restart passes through several in a second.
        """
        lasts = time.monotonic() - self._told_at_s >= NEWS_AFTER_S
        if self._told and (why == self._told or not lasts):
            return
        log.warning("not attached to %s, trying again: %s", self._engine_socket, why)
        self._note(why)

    def _note(self, why: str) -> None:
        self._told = why
        self._told_at_s = time.monotonic()


def _nobody_there(path: str) -> str:
    """Return why nobody can be called at `path`, without gRPC's jargon; "" if somebody can."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            probe.connect(path)
    except BlockingIOError:
        return ""
    except OSError as exc:
        remedy = "is `rrpa serve` running, with this --engine-socket?"
        if isinstance(exc, PermissionError):
            remedy = "this user is not in the group of the socket, or of a directory above it"
        return f"{os.strerror(exc.errno or 0)}; {remedy}"
    return ""
