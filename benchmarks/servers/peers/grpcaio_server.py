"""RRPAService by grpc.aio, with tokens that are already in memory.

python -m benchmarks.servers.peers.grpcaio_server unix:/path TOKENS_PER_S TOKEN_HEX
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvloop

from rrpa_sidecar.pb import rrpa_pb2, rrpa_pb2_grpc


class Steps:
    """The engine's beat: one timer, and one event that wakes all streams at each step.

    next: is set when the step after `number` begins.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self.number = 0
        self.next = asyncio.Event()

    async def run(self) -> None:
        due = time.monotonic()
        while True:
            due += self._period_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self.number += 1
            self.next.set()
            self.next = asyncio.Event()


class Service(rrpa_pb2_grpc.RRPAServiceServicer):
    """Says `token` at each step, max_tokens times, as an engine in this process would."""

    def __init__(self, steps: Steps, token: bytes) -> None:
        self._steps = steps
        self._token = token

    async def CreateStream(  # noqa: N802 - the proto's name
        self, request: rrpa_pb2.CreateStreamRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[rrpa_pb2.CreateStreamResponse]:
        steps, token, offset = self._steps, self._token, 0
        began = steps.number
        for count in range(request.max_tokens):
            # One that is behind has tokens waiting, and goes on without a step.
            while steps.number - began <= count:
                await steps.next.wait()
            yield rrpa_pb2.CreateStreamResponse(offset=offset, data=token)
            offset += len(token)
        finish = rrpa_pb2.Finish(reason=rrpa_pb2.FINISH_REASON_LENGTH)
        yield rrpa_pb2.CreateStreamResponse(offset=offset, finish=finish)


async def main(address: str, tokens_per_s: float, token: bytes) -> None:
    steps = Steps(1 / tokens_per_s)
    server = grpc.aio.server()
    rrpa_pb2_grpc.add_RRPAServiceServicer_to_server(Service(steps, token), server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(address)
    await server.start()
    print("ready", flush=True)
    await steps.run()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], float(sys.argv[2]), bytes.fromhex(sys.argv[3])))
