"""Which shape of a grpc.aio server is the cheapest: the argument for the one in grpcaio_server.

    python -m benchmarks.servers.peers.grpcaio_shapes

measures each at 256 streams × 50 tokens/s through Envoy, in three rounds, and prints µs of CPU
per token. It takes a minute.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import uvloop

from benchmarks.measuring import measure
from benchmarks.processes import private_prefix, start
from benchmarks.progress import Progress
from benchmarks.servers import TOKEN, PacedLoad, grpc_running
from benchmarks.servers.envoy import in_front
from benchmarks.spread import spread, text
from rrpa_sidecar.pb import rrpa_pb2 as pb

LOAD = PacedLoad(256, 50.0, seconds=20.0)
ROUNDS = 3
WARM_S, WINDOW_S = 0.5, 2.5


def message(number: int) -> pb.CreateStreamResponse:
    """Return the message with a stream's token of that number."""
    return pb.CreateStreamResponse(offset=number * len(TOKEN), data=TOKEN)


class Shapes:
    """Handlers of CreateStream that do the same in different ways, and the steps they follow."""

    def __init__(self) -> None:
        self._step = 0
        self._next = asyncio.Event()
        self._queues: set[asyncio.Queue[bytes]] = set()
        self._made = [message(number).SerializeToString() for number in range(LOAD.tokens)]

    async def run(self) -> None:
        due = time.monotonic()
        while True:
            due += 1 / LOAD.tokens_per_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self._step += 1
            self._next.set()
            self._next = asyncio.Event()
            for queue in self._queues:
                queue.put_nowait(TOKEN)

    async def yielding(self, request: Any, context: Any) -> AsyncIterator[Any]:
        began = self._step
        for number in range(LOAD.tokens):
            while self._step - began <= number:
                await self._next.wait()
            yield message(number)

    async def writing(self, request: Any, context: Any) -> None:
        began = self._step
        for number in range(LOAD.tokens):
            while self._step - began <= number:
                await self._next.wait()
            await context.write(message(number))

    async def ready_made(self, request: Any, context: Any) -> AsyncIterator[bytes]:
        began = self._step
        for number in range(LOAD.tokens):
            while self._step - began <= number:
                await self._next.wait()
            yield self._made[number]

    async def queueing(self, request: Any, context: Any) -> AsyncIterator[Any]:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._queues.add(queue)
        try:
            for number in range(LOAD.tokens):
                await queue.get()
                yield message(number)
        finally:
            self._queues.discard(queue)


serialize = pb.CreateStreamResponse.SerializeToString
# Label: the handler, what makes its messages bytes, and what runs the loop.
SHAPES: dict[str, tuple[str, Callable[[Any], bytes] | None, Callable[[Any], None]]] = {
    "yield": ("yielding", serialize, uvloop.run),
    "context.write": ("writing", serialize, uvloop.run),
    "yield bytes made in advance": ("ready_made", None, uvloop.run),
    "a queue per stream": ("queueing", serialize, uvloop.run),
    "yield, asyncio's own loop": ("yielding", serialize, asyncio.run),
}


async def serve(address: str, handler: str, serializer: Callable[[Any], bytes] | None) -> None:
    shapes = Shapes()
    method = grpc.unary_stream_rpc_method_handler(
        getattr(shapes, handler),
        request_deserializer=pb.CreateStreamRequest.FromString,
        response_serializer=serializer,
    )
    service = grpc.method_handlers_generic_handler("rrpa.v1.RRPAService", {"CreateStream": method})
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((service,))
    server.add_insecure_port(address)
    await server.start()
    print("ready", flush=True)
    await shapes.run()


def compare() -> None:
    with ExitStack() as stack:
        progress = stack.enter_context(Progress())
        private = tempfile.TemporaryDirectory(prefix=private_prefix(), dir="/tmp")
        top = Path(stack.enter_context(private))
        running = {}
        for number, label in enumerate(SHAPES):
            progress.say(f"starting {label}")
            workdir = top / str(number)
            workdir.mkdir()
            address = f"unix:{workdir}/server.sock"
            argv = [sys.executable, "-m", __spec__.name, address, label]
            child = start(stack, argv, name="server", workdir=workdir, ready="ready")
            direct = grpc_running(address, {"server": child.pid}, LOAD)
            running[label] = in_front(stack, direct, LOAD, workdir)
        found: dict[str, list[float]] = {label: [] for label in SHAPES}
        for number in range(1, ROUNDS + 1):
            for label, each in running.items():
                progress.say(f"round {number} of {ROUNDS}, {label}")
                measured = measure(each, LOAD, warm_s=WARM_S, seconds=WINDOW_S, workdir=top)
                found[label].append(measured.us_per_token("server") or 0.0)
    for label, values in found.items():
        print(f"{label:28}  {text(spread(values), 'µs')}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            compare()
        case [address, label] if label in SHAPES:
            handler, serializer, run = SHAPES[label]
            run(serve(address, handler, serializer))
        case _:
            sys.exit(f"expected: python -m {__spec__.name}, without arguments")
