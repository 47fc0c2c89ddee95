"""What grpc.health.v1 says: `""` is live, `rrpa.v1.RRPAService` is ready.

Ours and not grpcio-health-checking's servicer, whose messages we use: there a watcher that does
not read holds the lock that a status change needs, so one stuck client could keep the service
SERVING while it drains. Here a change is one assignment, and each watcher catches up by itself.

Source: grpc/health/v1/health.proto.
"""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2 as pb

from rrpa_sidecar.errors import InvalidRequest, StreamNotFound
from rrpa_sidecar.frontend.methods import HEALTH, RRPA

LIVE = ""
READY = RRPA
SERVICE = HEALTH

Status = pb.HealthCheckResponse


class Health:
    """The status of each name, and those who watch."""

    def __init__(self) -> None:
        self._status = {LIVE: Status.SERVING, READY: Status.NOT_SERVING}
        self._leaving = False
        self.watchers: set[Callable[[], None]] = set()
        """Called, in the loop's thread, when something may have changed. They must not raise."""
        self.closed = False

    def set_ready(self, ready: bool) -> None:
        """Say whether new streams are welcome."""
        self._status[READY] = _serving(ready and not self._leaving)
        self._tell()

    def leave(self) -> None:
        """Say "not ready" from now on, whoever says otherwise: an engine may still attach."""
        self._leaving = True
        self.set_ready(False)

    def close(self) -> None:
        """End all watches."""
        self.closed = True
        self._tell()

    def status(self, name: str) -> int:
        """Return a ServingStatus; SERVICE_UNKNOWN for names that are not served here."""
        found: int = self._status.get(name, Status.SERVICE_UNKNOWN)
        return found

    def check(self, request: bytes) -> bytes:
        """Answer Check.

        Raises:
          InvalidRequest, StreamNotFound: not a request; a name that is not served here.
        """
        name = name_of(request)
        status = self.status(name)
        if status == Status.SERVICE_UNKNOWN:
            raise StreamNotFound(f"no service {name[:60]!r} here; ask for {LIVE!r} or {READY!r}")
        return _answer(status)

    def _tell(self) -> None:
        for tell in list(self.watchers):
            tell()


class Watch:
    """What one watcher has been told: the status at once, and then each time it differs."""

    def __init__(self, health: Health, request: bytes) -> None:
        """Raise InvalidRequest if `request` is none. Unknown names are told so, not refused."""
        self._health = health
        self._name = name_of(request)
        self._told: int | None = None

    def news(self) -> bytes | None:
        """Return the next answer, or None while there is nothing new."""
        status = self._health.status(self._name)
        if status == self._told:
            return None
        self._told = status
        return _answer(status)


def name_of(request: bytes) -> str:
    """Return the service that a HealthCheckRequest asks for."""
    try:
        name: str = pb.HealthCheckRequest.FromString(request).service
    except DecodeError:
        raise InvalidRequest("the request is not a grpc.health.v1.HealthCheckRequest") from None
    return name


def _serving(serving: bool) -> int:
    status: int = Status.SERVING if serving else Status.NOT_SERVING
    return status


def _answer(status: int) -> bytes:
    raw: bytes = Status(status=status).SerializeToString()
    return raw
