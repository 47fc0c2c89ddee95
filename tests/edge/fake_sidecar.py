"""A stand-in for the sidecar: answers as the test says, so that only Envoy is on trial.

The model's name in the request picks the behaviour; the answer to `seen` is the metadata that
arrived. Run as a process: python fake_sidecar.py SOCKET.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
from google.api import httpbody_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from rrpa_sidecar.edge.descriptors import SERVICE
from rrpa_sidecar.edge.routes import PLAIN_HTTP
from rrpa_sidecar.pb import rrpa_pb2

TEXT = "text/plain; charset=utf-8"
SENTENCE = "no engine serves the model 'é 100% …'; ask ListModels"
NOT_A_BODY = b"\xff"

Call = Callable[[rrpa_pb2.CreateStreamRequest, grpc.aio.ServicerContext], AsyncIterator[bytes]]


class Broken(Exception):
    """The stream failed half-way."""


class Sidecar:
    """Behaviours by model, and how often an answer was begun."""

    def __init__(self) -> None:
        self.starts = 0
        self.held: dict[str, int] = {"now": 0, "most": 0}

    async def run(
        self, request: rrpa_pb2.CreateStreamRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        model, codes = request.model, grpc.StatusCode
        if model == "refused":
            await context.abort(codes[request.prompt], SENTENCE)
        await context.send_initial_metadata((("x-request-id", "from-the-sidecar"),))
        if model == "starts":
            yield str(self.starts).encode()
            return
        self.starts += 1
        if model == "accepted-then-failed":
            await context.abort(codes[request.prompt], SENTENCE)
        if model == "seen":
            pairs = [[k, v if isinstance(v, str) else v.hex()] for k, v in _metadata(context)]
            yield json.dumps(pairs).encode()
            return
        if model == "held":
            async for piece in self.hold(request.prompt):
                yield piece
            return
        if model == "size":
            yield str(request.ByteSize()).encode()
            return
        for number in range(request.max_tokens):
            yield b"token%d " % number
            await asyncio.sleep(0.02)
        if model == "fails":
            raise Broken
        if model == "dies":
            os._exit(1)

    async def hold(self, prompt: str) -> AsyncIterator[bytes]:
        self.held["now"] += 1
        self.held["most"] = max(self.held.values())
        try:
            yield b"held"
            await asyncio.sleep(float(prompt))
        finally:
            self.held["now"] -= 1

    async def create_stream(
        self, raw: bytes, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        try:
            async for data in self.run(rrpa_pb2.CreateStreamRequest.FromString(raw), context):
                yield rrpa_pb2.CreateStreamResponse(data=data).SerializeToString()
        except Broken:
            await context.abort(grpc.StatusCode.UNAVAILABLE, SENTENCE)

    async def create_message(
        self, raw: bytes, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        try:
            async for data in self.run(rrpa_pb2.CreateStreamRequest.FromString(raw), context):
                body = httpbody_pb2.HttpBody(content_type=TEXT, data=data)
                yield body.SerializeToString()
        except Broken:
            # What the real front end does for a caller that cannot read trailers.
            if (PLAIN_HTTP, "1") in _metadata(context):
                yield NOT_A_BODY
            await context.abort(grpc.StatusCode.UNAVAILABLE, SENTENCE)


def _metadata(context: grpc.aio.ServicerContext) -> list[tuple[str, str | bytes]]:
    return [(str(key), value) for key, value in context.invocation_metadata() or ()]


async def main(path: str) -> None:
    # Above 1,000 calls that wait for their handler, gRPC's core drops some with CANCELLED.
    options = [
        ("grpc.server.max_pending_requests", 8192),
        ("grpc.server.max_pending_requests_hard_limit", 8192),
    ]
    server, sidecar = grpc.aio.server(options=options), Sidecar()
    methods: dict[str, Callable[..., Awaitable[bytes] | AsyncIterator[bytes]]] = {
        "CreateStream": sidecar.create_stream,
        "CreateMessage": sidecar.create_message,
    }
    handlers = {
        name: grpc.unary_stream_rpc_method_handler(method) for name, method in methods.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    wanted = os.environ.get("FAKE_HEALTH", "SERVING")
    await servicer.set(SERVICE, health_pb2.HealthCheckResponse.ServingStatus.Value(wanted))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    print("ready", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
