"""grpc.health.v1: `""` is live, `rrpa.v1.RRPAService` is ready.

Ours and not grpcio-health-checking's servicer, whose messages we use: there a watcher that does
not read holds the lock that a status change needs, so one stuck client could keep the service
SERVING while it drains. Here a change is one assignment, and each watcher catches up by itself.

Source: grpc/health/v1/health.proto.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2 as pb

from rrpa_sidecar.status import one_line

LIVE = ""
READY = "rrpa.v1.RRPAService"
SERVICE = "grpc.health.v1.Health"

Status = pb.HealthCheckResponse
Context = grpc.aio.ServicerContext[Any, Any]


class Health:
    """The status of each name, and those who watch."""

    def __init__(self) -> None:
        self._status = {LIVE: Status.SERVING, READY: Status.NOT_SERVING}
        self._watchers: set[asyncio.Event] = set()
        self._leaving = False
        self._closed = False

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
        self._closed = True
        self._tell()

    async def check(self, request: bytes, context: Context) -> bytes:
        """Serve Check."""
        name = _name(request, context)
        if name is None:
            return b""
        status = self._status.get(name)
        if status is None:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            context.set_details(
                one_line(f"no service {name[:60]!r} here; ask for {LIVE!r} or {READY!r}")
            )
            return b""
        return _answer(status)

    async def watch(self, request: bytes, context: Context) -> None:
        """Serve Watch: the status now, and each time it differs. Unknown names are told so."""
        name = _name(request, context)
        if name is None:
            return
        changed, told = asyncio.Event(), None
        self._watchers.add(changed)
        try:
            while not self._closed:
                changed.clear()
                status = self._status.get(name, Status.SERVICE_UNKNOWN)
                if status != told:
                    await context.write(_answer(status))
                    told = status
                await changed.wait()
        finally:
            self._watchers.discard(changed)

    def _tell(self) -> None:
        for changed in self._watchers:
            changed.set()


def _serving(serving: bool) -> int:
    status: int = Status.SERVING if serving else Status.NOT_SERVING
    return status


def _answer(status: int) -> bytes:
    raw: bytes = Status(status=status).SerializeToString()
    return raw


def _name(request: bytes, context: Context) -> str | None:
    try:
        name: str = pb.HealthCheckRequest.FromString(request).service
    except DecodeError:
        context.set_code(grpc.StatusCode.INVALID_ARGUMENT)
        context.set_details("the request is not a grpc.health.v1.HealthCheckRequest")
        return None
    return name
