"""Server reflection over grpc.aio."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from rrpa_sidecar.errors import InvalidRequest
from rrpa_sidecar.frontend.grpcio.handlers import set_status
from rrpa_sidecar.frontend.reflection import reflect

Context = grpc.aio.ServicerContext[Any, Any]


async def info(requests: AsyncIterator[bytes], context: Context) -> None:
    """Serve ServerReflectionInfo."""
    try:
        async for raw in requests:
            await context.write(reflect(raw))
    except InvalidRequest as error:
        set_status(context, error)
