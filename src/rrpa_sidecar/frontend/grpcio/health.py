"""grpc.health.v1 over grpc.aio."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from rrpa_sidecar.errors import RRPAError
from rrpa_sidecar.frontend.grpcio.handlers import set_status
from rrpa_sidecar.frontend.health import Health, Watch

Context = grpc.aio.ServicerContext[Any, Any]


class HealthHandlers:
    """Check and Watch of one `Health`."""

    def __init__(self, health: Health) -> None:
        self._health = health

    async def check(self, request: bytes, context: Context) -> bytes:
        """Serve Check."""
        try:
            return self._health.check(request)
        except RRPAError as error:
            set_status(context, error)
            return b""

    async def watch(self, request: bytes, context: Context) -> None:
        """Serve Watch."""
        try:
            watch = Watch(self._health, request)
        except RRPAError as error:
            set_status(context, error)
            return
        changed = asyncio.Event()
        self._health.watchers.add(changed.set)
        try:
            while not self._health.closed:
                changed.clear()
                answer = watch.news()
                if answer is not None:
                    await context.write(answer)
                await changed.wait()
        finally:
            self._health.watchers.discard(changed.set)
