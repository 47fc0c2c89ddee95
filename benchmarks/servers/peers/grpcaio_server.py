"""RRPAService by grpc.aio, with tokens that are already in memory.

python -m benchmarks.servers.peers.grpcaio_server unix:/path TOKENS_PER_S TOKEN_HEX [STAMP]

TOKENS_PER_S: 0 gives an answer's tokens at once.
STAMP: the time that each token begins with, written as the replay engine's --stamp does:
"made" is when the step began that made the token, "handed" when the handler gave it to gRPC.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvloop

from rrpa_sidecar.engine.replay.source import stamp
from rrpa_sidecar.pb import rrpa_pb2, rrpa_pb2_grpc


class Steps:
    """The engine's beat: one timer, and one event that wakes all streams at each step.

    paced: whether there are steps at all.
    next: is set when the step after `number` begins.
    began_ns: when each step began, by its number.
    """

    def __init__(self, tokens_per_s: float) -> None:
        self.paced = tokens_per_s > 0
        self._period_s = 1 / tokens_per_s if self.paced else 3600.0
        self.number = 0
        self.began_ns = [0]
        self.next = asyncio.Event()

    async def run(self) -> None:
        due = time.monotonic()
        while True:
            due += self._period_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self.began_ns.append(time.monotonic_ns())
            self.number += 1
            self.next.set()
            self.next = asyncio.Event()


class Service(rrpa_pb2_grpc.RRPAServiceServicer):
    """Says `token` at each step, max_tokens times, as an engine in this process would."""

    def __init__(self, steps: Steps, token: bytes, stamps: str = "") -> None:
        self._steps = steps
        self._token = token
        self._stamps = stamps

    async def CreateStream(  # noqa: N802 - the proto's name
        self, request: rrpa_pb2.CreateStreamRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[rrpa_pb2.CreateStreamResponse]:
        steps, token, offset, stamps = self._steps, self._token, 0, self._stamps
        began = steps.number
        for count in range(request.max_tokens):
            # One that is behind has tokens waiting, and goes on without a step.
            while steps.paced and steps.number - began <= count:
                await steps.next.wait()
            if stamps == "handed":
                token = stamp(time.monotonic_ns()) + self._token
            elif stamps == "made":
                token = stamp(steps.began_ns[began + count + 1]) + self._token
            yield rrpa_pb2.CreateStreamResponse(offset=offset, data=token)
            offset += len(token)
        finish = rrpa_pb2.Finish(reason=rrpa_pb2.FINISH_REASON_LENGTH)
        yield rrpa_pb2.CreateStreamResponse(offset=offset, finish=finish)


async def main(address: str, tokens_per_s: float, token: bytes, stamps: str) -> None:
    steps = Steps(tokens_per_s)
    server = grpc.aio.server()
    rrpa_pb2_grpc.add_RRPAServiceServicer_to_server(Service(steps, token, stamps), server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(address)
    await server.start()
    print("ready", flush=True)
    await steps.run()


if __name__ == "__main__":
    address, tokens_per_s, token, stamps = (*sys.argv[1:], "")[:4]
    uvloop.run(main(address, float(tokens_per_s), bytes.fromhex(token), stamps))
