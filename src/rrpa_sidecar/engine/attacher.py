"""The background thread that keeps an engine attached."""

from __future__ import annotations

import logging
import os
import socket
from random import Random
from threading import Event, Thread

import grpc

from rrpa_sidecar.engine.backoff import Backoff
from rrpa_sidecar.engine.bell import StepBell
from rrpa_sidecar.engine.connection import Connection
from rrpa_sidecar.engine.files import OwnFiles
from rrpa_sidecar.engine.identity import Identity
from rrpa_sidecar.engine.inbox import Inbox
from rrpa_sidecar.engine.job import Job
from rrpa_sidecar.engine.over import Cause
from rrpa_sidecar.errors import AttachRefused, RRPAError
from rrpa_sidecar.pb import engine_pb2
from rrpa_sidecar.shm.directory import SegmentDirectory
from rrpa_sidecar.shm.doorbell import Ringer
from rrpa_sidecar.status import Code

HANG_UP_S = 1.0
"""How long the sidecar has to end the call after the engine hung up."""
REFUSALS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""Answers to Hello that trying again will not change."""

log = logging.getLogger(__name__)


class Attacher:
    """Dials, says Hello, obeys, and begins again when the call ends."""

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
        self._backoff = Backoff(Random())
        self._connection: Connection | None = None
        self._lost: list[Connection] = []
        self._told = ""
        self._closed = Event()
        self._thread = Thread(target=self._run, name="rrpa-engine", daemon=True)
        self._thread.start()

    def open_jobs(self) -> list[Job]:
        """Return every job that is not over, those of lost connections too."""
        connections = [*self._lost, *filter(None, [self._connection])]
        return [job for connection in connections for job in list(connection.jobs.values())]

    def close(self) -> None:
        """Detach and end the thread. Idempotent."""
        if (connection := self._connection) is not None:
            connection.hang_up()
        self._closed.set()
        self._thread.join(HANG_UP_S)
        if self._thread.is_alive() and (connection := self._connection) is not None:
            connection.abort()
            self._thread.join(HANG_UP_S)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                why = self._attach_once()
            except AttachRefused as exc:
                self._inbox.refuse(str(exc))
                return
            if self._closed.is_set():
                return
            if why != self._told:
                log.warning("not attached to %s, trying again: %s", self._engine_socket, why)
                self._told = why
            self._closed.wait(self._backoff.next_s())

    def _attach_once(self) -> str:
        """Attach and obey until the call ends; return why it ended.

        Raises:
          AttachRefused: there is no point in trying again.
        """
        try:
            connection = Connection(self._identity, self._directory, self._engine_socket)
        except (RRPAError, OSError) as exc:  # no room, no descriptor, a cleaner that was faster
            return str(exc)
        self._connection = connection
        try:
            if not self._closed.is_set():
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
        finally:
            self._detach(connection)
        return "the sidecar ended the attachment"

    def _obey(self, connection: Connection, command: engine_pb2.Command) -> None:
        kind = command.WhichOneof("command")
        if kind == "submit":
            self._submit(connection, command.submit)
        elif kind == "cancel":
            self._cancel(connection, command.cancel.stream_id)
        elif kind == "release":
            self._files.release(command.release.stream_id)
        elif kind == "welcome":
            self._welcome(connection, command.welcome)

    def _welcome(self, connection: Connection, welcome: engine_pb2.Welcome) -> None:
        connection.welcomed = True
        connection.stream_bytes = welcome.stream_bytes
        self._bell.connect(Ringer(welcome.doorbell_path))
        self._backoff.reset()
        self._told = ""
        # Logs of an earlier attachment: whoever could read them is gone.
        self._files.release_all()
        log.info("attached to %s, version %s", self._engine_socket, welcome.sidecar_version)
        self._inbox.set_serving(True)

    def _submit(self, connection: Connection, submit: engine_pb2.Submit) -> None:
        job = Job(submit, connection, self._bell, self._files)
        connection.jobs[job.stream_id] = job
        if not self._inbox.put(job):
            job.reject(Code.UNAVAILABLE, Cause.STOPPING.value)

    def _cancel(self, connection: Connection, stream_id: str) -> None:
        job = connection.jobs.get(stream_id)
        if job is None:
            return
        job.cancel(Cause.CLIENT_LEFT)
        if self._inbox.discard(job):
            job.abandon()

    def _detach(self, connection: Connection) -> None:
        for job in list(connection.jobs.values()):
            job.cancel(Cause.SIDECAR_LOST)
        self._bell.connect(None)
        connection.close()
        self._lost = [old for old in [*self._lost, connection] if old.jobs]
        self._connection = None
        for job in self._inbox.set_serving(False):
            job.abandon()


def _nobody_there(path: str) -> str:
    """Return why nobody can be called at `path`, without gRPC's jargon; "" if somebody can."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            probe.connect(path)
    except BlockingIOError:
        return ""
    except OSError as exc:
        why = os.strerror(exc.errno or 0)
        return f"{why}; is `rrpa serve` running, with this --engine-socket?"
    return ""
