"""RRPAService by grpc.aio, with answers that are there at once, and paced ones beside them.

python -m benchmarks.servers.peers.grpcaio_burst_server unix:/path TEXT_FILE

A call for the model "normal" gets 100 stamped tokens a second, every other one TEXT_FILE,
max_tokens times, as fast as the library takes it. It is a generator, so the library holds it
back; nothing is queued.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import uvloop

from rrpa_sidecar.pb import rrpa_pb2, rrpa_pb2_grpc

PERIOD_S = 0.01
PIECE_CHARACTERS = 16_000
"""Of `pattern()`, about two bytes each: twice the product's messages, which end at a connection's
frame limit of 16 KB. Fewer messages are cheaper for the peer."""


class Service(rrpa_pb2_grpc.RRPAServiceServicer):
    def __init__(self, text: bytes) -> None:
        whole = text.decode()
        self._pieces = [
            whole[at : at + PIECE_CHARACTERS].encode()
            for at in range(0, len(whole), PIECE_CHARACTERS)
        ]

    async def CreateStream(  # noqa: N802 - the proto's name
        self, request: rrpa_pb2.CreateStreamRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[rrpa_pb2.CreateStreamResponse]:
        offset = 0
        for _ in range(request.max_tokens):
            if request.model == "normal":
                await asyncio.sleep(PERIOD_S)
                pieces = [b"%019d word" % time.monotonic_ns()]
            else:
                pieces = self._pieces
            for piece in pieces:
                yield rrpa_pb2.CreateStreamResponse(offset=offset, data=piece)
                offset += len(piece)
        finish = rrpa_pb2.Finish(reason=rrpa_pb2.FINISH_REASON_LENGTH)
        yield rrpa_pb2.CreateStreamResponse(offset=offset, finish=finish)


async def main(address: str, text: bytes) -> None:
    server = grpc.aio.server()
    service = Service(text)
    rrpa_pb2_grpc.add_RRPAServiceServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(address)
    await server.start()
    print("ready", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], Path(sys.argv[2]).read_bytes()))
