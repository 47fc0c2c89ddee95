"""Server reflection, so that grpcurl works without a proto file (v1alpha, which all tools know)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection, reflection_pb2  # its async part is `.aio`

from rrpa_sidecar.frontend.grpcio import health

SERVICE: str = reflection.SERVICE_NAME
Context = grpc.aio.ServicerContext[Any, Any]


class Reflection:
    """grpcio-reflection's answers behind a handler that never ends with UNKNOWN."""

    def __init__(self) -> None:
        self._servicer = reflection.aio.ReflectionServicer(  # type: ignore[attr-defined]
            [health.READY, health.SERVICE, SERVICE]
        )

    async def info(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Serve ServerReflectionInfo."""
        try:
            async for reply in self._servicer.ServerReflectionInfo(_parsed(requests), context):
                await context.write(reply.SerializeToString())
        except DecodeError:
            context.set_code(grpc.StatusCode.INVALID_ARGUMENT)
            context.set_details(f"the request is not one of {SERVICE}")


async def _parsed(requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    async for raw in requests:
        yield reflection_pb2.ServerReflectionRequest.FromString(raw)
