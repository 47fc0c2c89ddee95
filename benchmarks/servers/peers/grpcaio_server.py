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
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import grpc
import uvloop

from rrpa_sidecar.engine.replay.source import stamp
from rrpa_sidecar.pb import rrpa_pb2, rrpa_pb2_grpc

Wait = Callable[[int], Awaitable[int]]
"""Waits for a stream's token by its number, from 0; returns when it was made, in ns."""


class Steps(Protocol):
    """An engine's pace."""

    def beat(self) -> Wait:
        """Return how a stream that begins now waits for its tokens."""
        ...

    async def run(self) -> None:
        """Go on for ever."""
        ...


class SharedSteps:
    """One timer, and one event that wakes all streams at each step.

    A step's tokens exist when it begins: a stream that is behind has tokens waiting, and their
    times are those of their steps.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._began_ns: list[int] = []
        self._next = asyncio.Event()

    def beat(self) -> Wait:
        first = len(self._began_ns)

        async def wait(count: int) -> int:
            while len(self._began_ns) <= first + count:
                await self._next.wait()
            return self._began_ns[first + count]

        return wait

    async def run(self) -> None:
        due = time.monotonic()
        while True:
            due += self._period_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self._began_ns.append(time.monotonic_ns())
            self._next.set()
            self._next = asyncio.Event()


class OwnSteps:
    """Each stream has a timer; a token exists when it is due."""

    def __init__(self, period_s: float) -> None:
        self._period_ns = round(period_s * 1e9)

    def beat(self) -> Wait:
        start_ns = time.monotonic_ns()

        async def wait(count: int) -> int:
            due_ns = start_ns + count * self._period_ns
            left_ns = due_ns - time.monotonic_ns()
            if left_ns > 0:
                await asyncio.sleep(left_ns / 1e9)
            # A timer may come early by less than its resolution.
            return min(due_ns, time.monotonic_ns())

        return wait

    async def run(self) -> None:
        await asyncio.Event().wait()


class NoSteps(OwnSteps):
    """Every token exists at once."""

    def __init__(self) -> None:
        super().__init__(0)

    def beat(self) -> Wait:
        async def wait(count: int) -> int:
            return time.monotonic_ns()

        return wait


BEATS: dict[str, Callable[[float], Steps]] = {"shared": SharedSteps, "own": OwnSteps}


class Service(rrpa_pb2_grpc.RRPAServiceServicer):
    """Says `token` at each step, max_tokens times, as an engine in this process would."""

    def __init__(self, steps: Steps, token: bytes, stamps: str) -> None:
        self._steps = steps
        self._token = token
        self._stamps = stamps

    async def CreateStream(  # noqa: N802 - the proto's name
        self, request: rrpa_pb2.CreateStreamRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[rrpa_pb2.CreateStreamResponse]:
        token, stamps, offset = self._token, self._stamps, 0
        wait = self._steps.beat()
        for count in range(request.max_tokens):
            made_ns = await wait(count)
            if stamps:
                stamp_ns = made_ns if stamps == "made" else time.monotonic_ns()
                token = stamp(stamp_ns) + self._token
            yield rrpa_pb2.CreateStreamResponse(offset=offset, data=token)
            offset += len(token)
        finish = rrpa_pb2.Finish(reason=rrpa_pb2.FINISH_REASON_LENGTH)
        yield rrpa_pb2.CreateStreamResponse(offset=offset, finish=finish)


async def main(
    address: str, tokens_per_s: float, token: bytes, stamps: str = "", beat: str = "shared"
) -> None:
    steps = NoSteps() if not tokens_per_s else BEATS[beat](1 / tokens_per_s)
    server = grpc.aio.server()
    rrpa_pb2_grpc.add_RRPAServiceServicer_to_server(Service(steps, token, stamps), server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(address)
    await server.start()
    print("ready", flush=True)
    await steps.run()


if __name__ == "__main__":
    address, tokens_per_s, token, *rest = sys.argv[1:]
    uvloop.run(main(address, float(tokens_per_s), bytes.fromhex(token), *rest))
