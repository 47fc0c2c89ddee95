"""A broker whose streams a test writes by hand, behind each real front end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from rrpa_sidecar.clock import SystemClock
from rrpa_sidecar.config import Config
from rrpa_sidecar.control.broker import Labels
from rrpa_sidecar.control.engines import ModelInfo
from rrpa_sidecar.control.live import Timing
from rrpa_sidecar.errors import RRPAError, StreamNotFound
from rrpa_sidecar.frontend.batched.server import BatchedServer
from rrpa_sidecar.frontend.grpcio.handlers import RRPAHandlers
from rrpa_sidecar.frontend.grpcio.server import create_server
from rrpa_sidecar.frontend.health import Health
from rrpa_sidecar.metrics import Metrics
from rrpa_sidecar.stream.events import Data, Event, Failed, Finished

STREAM = "/rrpa.v1.RRPAService/CreateStream"
MESSAGE = "/rrpa.v1.RRPAService/CreateMessage"
RESUME = "/rrpa.v1.RRPAService/ResumeStream"
RESUME_MESSAGE = "/rrpa.v1.RRPAService/ResumeMessage"
CANCEL = "/rrpa.v1.RRPAService/CancelStream"
MODELS = "/rrpa.v1.RRPAService/ListModels"
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


@dataclass
class FakeStream:
    """A Reading with a queue of events."""

    labels: Labels
    stream_id: str = "f" * 32
    model: str = "test"
    timing: Timing = field(default_factory=lambda: Timing(SystemClock().now_ns()))
    waker: Callable[[], None] | None = None
    left: int = 0
    polls: int = 0
    events: deque[Event | Exception] = field(default_factory=deque)
    start_offset: int = 0
    resumed: bool = False
    offset: int = 0
    put_bytes: int = 0

    @property
    def resumable(self) -> bool:
        return self.labels.resumable

    def follow(self, place: object, word: int = 0) -> None:
        """There is no table here."""

    def poll(self, limit_bytes: int = 65536) -> Event | None:
        self.polls += 1
        if not self.events:
            return None
        event = self.events.popleft()
        if isinstance(event, Exception):
            raise event
        if isinstance(event, Data):
            self.offset += len(event.data)
        return event

    @property
    def caught_up(self) -> bool:
        return not self.events

    def leave(self) -> None:
        self.left += 1

    def put(self, event: Event | Exception) -> None:
        self.events.append(event)
        if self.waker:
            self.waker()

    def data(self, data: bytes) -> None:
        at, self.put_bytes = self.put_bytes, self.put_bytes + len(data)
        self.put(Data(at, data))

    def finish(self, reason: int = 1) -> None:
        self.put(Finished(self.put_bytes, reason, None, 3, 4, 0))

    def fail(self, error: RRPAError) -> None:
        self.put(Failed(self.put_bytes, error))


class FakeBroker:
    """Opens and resumes FakeStreams, or raises `refusal`."""

    def __init__(self) -> None:
        self.streams: list[FakeStream] = []
        self.requests: list[bytes] = []
        self.timeouts: list[float | None] = []
        self.cancelled: list[str] = []
        self.refusal: Exception | None = None
        self.on_open: Callable[[FakeStream], None] = lambda stream: None

    def open(self, request: bytes, labels: Labels, timeout_s: float | None) -> FakeStream:
        self.requests.append(request)
        self.timeouts.append(timeout_s)
        if self.refusal is not None:
            raise self.refusal
        stream = FakeStream(labels)
        self.streams.append(stream)
        self.on_open(stream)
        return stream

    def resume(self, stream_id: str, offset: int, labels: Labels) -> FakeStream:
        if self.refusal is not None:
            raise self.refusal
        stream = FakeStream(
            labels, stream_id, start_offset=offset, resumed=True, offset=offset, put_bytes=offset
        )
        self.streams.append(stream)
        self.on_open(stream)
        return stream

    def cancel_stream(self, stream_id: str) -> None:
        if stream_id not in [stream.stream_id for stream in self.streams]:
            raise StreamNotFound(f"no stream {stream_id}")
        self.cancelled.append(stream_id)

    def models(self) -> list[ModelInfo]:
        if self.refusal is not None:
            raise self.refusal
        return [ModelInfo("a", 1, 2, 0), ModelInfo("b", 2, 4, 3)]


@dataclass
class Front:
    """A running front end and a channel to it."""

    broker: FakeBroker
    metrics: Metrics
    handlers: RRPAHandlers | BatchedServer
    health: Health
    channel: grpc.aio.Channel
    address: str
    others: list[grpc.aio.Channel] = field(default_factory=list)

    def stream(self, request: bytes = b"", **kwargs: object) -> grpc.aio.UnaryStreamCall:
        return self.channel.unary_stream(STREAM)(request, **kwargs)

    def resume(self, request: bytes, method: str = RESUME, **kwargs: object) -> Any:
        return self.channel.unary_stream(method)(request, **kwargs)

    def message(self, request: bytes = b"", **kwargs: object) -> grpc.aio.UnaryStreamCall:
        return self.channel.unary_stream(MESSAGE)(request, **kwargs)

    async def stream_of_another_connection(self) -> grpc.aio.UnaryStreamCall:
        """Begin a stream on a connection of its own, after the first stream is there."""
        while not self.broker.streams:
            await asyncio.sleep(0.001)
        channel = grpc.aio.insecure_channel(self.address, options=OWN_CONNECTION)
        self.others.append(channel)
        return channel.unary_stream(STREAM)(b"")

    async def reconnect(self) -> None:
        """Close the channel and go on with another: one connection may reset so many calls only."""
        await self.channel.close()
        self.channel = grpc.aio.insecure_channel(self.address, options=OWN_CONNECTION)
        self.others.append(self.channel)

    def codes(self) -> dict[str, int]:
        """Ended calls by code, over all models, zeros left out."""
        from rrpa_sidecar.status import Code

        counts = self.metrics.model("test").codes
        return {Code(at).name: count for at, count in enumerate(counts) if count}


@contextlib.asynccontextmanager
async def front_end(folder: Path, kind: str, **settings: int) -> AsyncIterator[Front]:
    """Run a real front end, `grpcio` or `batched`, over a fake broker on a Unix socket."""
    broker, metrics, health, clock = FakeBroker(), Metrics(), Health(), SystemClock()
    config, path = Config(**settings), f"{folder}/front.sock"
    handlers: RRPAHandlers | BatchedServer
    async with contextlib.AsyncExitStack() as undo:
        if kind == "batched":
            handlers = BatchedServer(config, broker, metrics, clock, health)  # type: ignore[arg-type]
            bound = socket.socket(socket.AF_UNIX)
            bound.bind(path)
            await handlers.listen(bound)
            undo.push_async_callback(handlers.stop, 0)
        else:
            window_s = config.resume_window_s
            handlers = RRPAHandlers(broker, metrics, clock, window_s)  # type: ignore[arg-type]
            server = create_server(config, handlers, health)
            server.add_insecure_port(f"unix:{path}")
            await server.start()
            undo.push_async_callback(server.stop, None)
        address = f"unix:{path}"
        channel = grpc.aio.insecure_channel(address, options=OWN_CONNECTION)
        await undo.enter_async_context(channel)
        front = Front(broker, metrics, handlers, health, channel, address)
        yield front
        for other in front.others:
            await other.close()
