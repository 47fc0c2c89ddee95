"""EngineService over grpc.aio: one coroutine for each attached engine. The only gRPC in control.

Every end of the call, whoever caused it, detaches the engine: the kernel closes the socket of a
process that dies, gRPC sees that at once, and the engine's streams are told within a sweep.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError

from rrpa_sidecar import __version__
from rrpa_sidecar.control.announced import Roll
from rrpa_sidecar.control.broker import Broker
from rrpa_sidecar.control.engines import Engine
from rrpa_sidecar.control.outbox import Outbox
from rrpa_sidecar.errors import (
    DeadlinePassed,
    EngineLost,
    InvalidRequest,
    RRPAError,
    StreamMisuse,
)
from rrpa_sidecar.pb.engine_pb2 import (
    AttachRequest,
    AttachResponse,
    Hello,
    OpenStream,
    Rejected,
    Welcome,
)
from rrpa_sidecar.pb.engine_pb2_grpc import (
    EngineServiceServicer,
    add_EngineServiceServicer_to_server,
)
from rrpa_sidecar.status import Code, status_of

log = logging.getLogger(__name__)

HELLO_LIMIT_BYTES = 64 * 1024
"""A Hello of 64 models with the longest names and the longest path is 13 KiB; an Announce holds
150 streams with the longest names and labels."""

LAST_WRITE_S = 1.0
"""How long an engine has, at the end of its call, to take the message that is on its way."""

GRPC_CODES = {Code(code.value[0]): code for code in grpc.StatusCode}

EOF = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in the stubs

Context = grpc.aio.ServicerContext[AttachRequest, AttachResponse]


class Settings(Protocol):
    """The part of `Config` that this service needs."""

    @property
    def hello_timeout_s(self) -> float: ...


def engine_server_options(config: Settings) -> list[tuple[str, Any]]:
    """Return the options of the server on the engines' socket."""
    hello_timeout_ms = int(config.hello_timeout_s * 1000)
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", HELLO_LIMIT_BYTES),
        ("grpc.max_send_message_length", -1),  # requests were measured when they came in
        # Peers that connect and do not call, whether or not they speak HTTP/2.
        ("grpc.max_connection_idle_ms", hello_timeout_ms),
        # An engine's library pings as it likes; the socket is local.
        ("grpc.http2.min_ping_interval_without_data_ms", 1000),
        ("grpc.keepalive_permit_without_calls", 1),
    ]


class AttachService(EngineServiceServicer):
    """Attaches engines to a broker."""

    def __init__(self, broker: Broker, config: Settings) -> None:
        self._broker = broker
        self._hello_timeout_s = config.hello_timeout_s
        self.open_calls = 0
        """Calls of engines whose handlers have not returned."""

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`; make it with `engine_server_options`."""
        add_EngineServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    async def Attach(self, request_iterator: Any, context: Context) -> None:  # noqa: N802
        """Serve one engine, from Hello to the end of its call."""
        self.open_calls += 1
        try:
            await self._attach(context)
        finally:
            self.open_calls -= 1

    async def _attach(self, context: Context) -> None:
        try:
            hello, announced = await self._read_beginning(context)
            await self._serve(hello, announced, context)
        except RRPAError as error:
            code, text = status_of(error)
            log.warning("engine refused or detached: %s: %s", code.name, text)
            await context.abort(GRPC_CODES[code], text)
        except grpc.aio.BaseError:  # gRPC's own: an abort, or a call that broke
            raise
        except Exception as error:
            log.exception("attachment failed")
            code, text = status_of(error)
            await context.abort(GRPC_CODES[code], text)

    async def _read_beginning(self, context: Context) -> tuple[Hello, list[OpenStream]]:
        """Return Hello and the streams that it announces."""
        missing = "Hello"
        try:
            async with asyncio.timeout(self._hello_timeout_s):
                hello = await _read_hello(context)
                roll = Roll(hello)
                while roll.missing:
                    missing = f"Announce of {roll.missing} streams"
                    roll.add(await _message_before(context, missing))
        except TimeoutError:
            # Not the engine's fault for certain: a machine may stand still. It may try again.
            raise DeadlinePassed(f"no {missing} within {self._hello_timeout_s:g} s") from None
        return hello, roll.streams

    async def _serve(self, hello: Hello, announced: list[OpenStream], context: Context) -> None:
        outbox = Outbox(hello.capacity)
        # In the box before the broker knows the engine: Welcome is the first answer.
        outbox.welcome(
            Welcome(
                doorbell_path=self._broker.bell_path,
                stream_bytes=self._broker.stream_bytes,
                sidecar_version=__version__,
            )
        )
        engine = self._broker.attach(hello, outbox, announced)
        why = "its connection broke"
        try:
            why = await self._talk(engine, outbox, context)
        except RRPAError as error:
            why = str(error)
            raise
        finally:
            self._broker.detach(engine, why)

    async def _talk(self, engine: Engine, outbox: Outbox, context: Context) -> str:
        """Read and write until one of both ends; return why the reader did."""
        reading = asyncio.create_task(self._read(engine, context))
        writing = asyncio.create_task(self._write(outbox, context))
        tasks = {reading, writing}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            reading.cancel()
            # A write that is cancelled half-way would leave the call without a status.
            outbox.close(EngineLost("the attachment is over"))
            try:
                await asyncio.wait({writing}, timeout=LAST_WRITE_S)
            finally:  # gRPC may cancel the handler once more
                writing.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            if task.cancelled():  # a fault of ours; the engine must not take it for a farewell
                raise EngineLost("the attachment was interrupted; attach again")
            error = task.exception()
            if isinstance(error, RRPAError):
                raise error
            if error is not None:
                return "its connection broke"
        return "it ended its call"

    async def _read(self, engine: Engine, context: Context) -> None:
        while (message := await _message(context)) is not EOF:
            kind = message.WhichOneof("event")
            if kind == "hello":
                raise InvalidRequest("Hello came twice; it is the first message and only that")
            if kind == "announce":
                self._broker.announce(engine, message.announce.streams)
            elif kind == "rejected":
                self._rejected(engine, message.rejected)
            # Anything else is of a later version, which knows that we may not understand it.

    def _rejected(self, engine: Engine, rejected: Rejected) -> None:
        try:
            self._broker.rejected(engine, rejected.stream_id, rejected.code, rejected.message)
        except StreamMisuse as exc:
            raise InvalidRequest("Rejected came for a stream whose log exists") from exc

    async def _write(self, outbox: Outbox, context: Context) -> None:
        while True:
            await context.write(await outbox.take())


async def _read_hello(context: Context) -> Hello:
    first = await _message_before(context, "Hello")
    if first.WhichOneof("event") != "hello":
        raise InvalidRequest("the first message must be Hello")
    hello: Hello = first.hello
    return hello


async def _message_before(context: Context, missing: str) -> Any:
    """Return the next message of an engine that has not said all that it must say first."""
    message = await _message(context)
    if message is EOF:
        raise InvalidRequest(f"the call ended before {missing}")
    return message


async def _message(context: Context) -> Any:
    """Return the engine's next message, EOF after the last.

    Raises:
      InvalidRequest: its bytes are no message; their sender is at fault, so no traceback.
    """
    try:
        return await context.read()
    except DecodeError as exc:
        raise InvalidRequest("the message is not a rrpa.v1.AttachRequest") from exc
