"""RRPAService by grpc.aio, with tokens that are already in memory.

python -m benchmarks.servers.peers.grpcaio_server ADDRESS TOKENS_PER_S TOKEN_HEX [STAMP [BEAT]]

ADDRESS: unix:/path or host:port.
TOKENS_PER_S: 0 gives an answer's tokens at once.
STAMP: the time that each token begins with, written as the replay engine's --stamp does:
"made" is when the step began that made the token, "handed" when the handler gave it to gRPC.
BEAT: shared or own: all streams get their token in the same step, or each by its own timer.
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

    began_ns: when each step began. Its tokens exist from then on, so a stream that is behind has
      tokens waiting.
    next: is set when the next step begins.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self.began_ns: list[int] = []
        self.next = asyncio.Event()

    async def run(self) -> None:
        due = time.monotonic()
        while True:
            due += self._period_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self.began_ns.append(time.monotonic_ns())
            self.next.set()
            self.next = asyncio.Event()


def stamped(token: bytes, stamps: str, made_ns: int) -> bytes:
    """Return `token` behind the time that `stamps` asks for, which may be none."""
    if not stamps:
        return token
    return stamp(made_ns if stamps == "made" else time.monotonic_ns()) + token


class Service(rrpa_pb2_grpc.RRPAServiceServicer):
    """Says `token` at each step, max_tokens times, as an engine in this process would."""

    def __init__(self, steps: Steps, token: bytes, stamps: str) -> None:
        self._steps = steps
        self._token = token
        self._stamps = stamps

    async def CreateStream(  # noqa: N802 - the proto's name
        self, request: rrpa_pb2.CreateStreamRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[rrpa_pb2.CreateStreamResponse]:
        steps, token, offset, stamps = self._steps, self._token, 0, self._stamps
        first = len(steps.began_ns)
        for number in range(first, first + request.max_tokens):
            while len(steps.began_ns) <= number:
                await steps.next.wait()
            if stamps:
                token = stamped(self._token, stamps, steps.began_ns[number])
            yield rrpa_pb2.CreateStreamResponse(offset=offset, data=token)
            offset += len(token)
        yield finish(offset)


class OwnSteps(rrpa_pb2_grpc.RRPAServiceServicer):
    """The same with a timer for each stream, whose tokens exist when they are due.

    period_s: 0 gives all tokens at once.
    """

    def __init__(self, period_s: float, token: bytes, stamps: str) -> None:
        self._period_ns = round(period_s * 1e9)
        self._token = token
        self._stamps = stamps

    async def CreateStream(  # noqa: N802 - the proto's name
        self, request: rrpa_pb2.CreateStreamRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[rrpa_pb2.CreateStreamResponse]:
        offset, due_ns = 0, time.monotonic_ns()
        for _ in range(request.max_tokens):
            left_ns = due_ns - time.monotonic_ns()
            if left_ns > 0:
                await asyncio.sleep(left_ns / 1e9)
            # A timer may fire early by less than its resolution; a token is never that early.
            token = stamped(self._token, self._stamps, min(due_ns, time.monotonic_ns()))
            yield rrpa_pb2.CreateStreamResponse(offset=offset, data=token)
            offset += len(token)
            due_ns += self._period_ns
        yield finish(offset)


def finish(offset: int) -> rrpa_pb2.CreateStreamResponse:
    ended = rrpa_pb2.Finish(reason=rrpa_pb2.FINISH_REASON_LENGTH)
    return rrpa_pb2.CreateStreamResponse(offset=offset, finish=ended)


async def main(
    address: str, tokens_per_s: float, token: bytes, stamps: str = "", beat: str = "shared"
) -> None:
    period_s = 1 / tokens_per_s if tokens_per_s else 0.0
    steps = Steps(period_s)
    shared = period_s and beat == "shared"
    service = Service(steps, token, stamps) if shared else OwnSteps(period_s, token, stamps)
    server = grpc.aio.server()
    rrpa_pb2_grpc.add_RRPAServiceServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(address)
    await server.start()
    print("ready", flush=True)
    await (steps.run() if shared else server.wait_for_termination())


if __name__ == "__main__":
    where, pace, text, *rest = sys.argv[1:]
    uvloop.run(main(where, float(pace), bytes.fromhex(text), *rest))
