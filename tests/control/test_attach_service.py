"""Engines attach over a real socket, with a real gRPC client, and some that are none."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import grpc
import pytest

from rrpa_sidecar import __version__
from rrpa_sidecar.clock import SystemClock
from rrpa_sidecar.control.attach_service import (
    HELLO_LIMIT_BYTES,
    AttachService,
    engine_server_options,
)
from rrpa_sidecar.control.broker import Broker, Labels, LiveStream
from rrpa_sidecar.control.outbox import Outbox
from rrpa_sidecar.control.pump import Pump
from rrpa_sidecar.errors import EngineLost
from rrpa_sidecar.metrics import Metrics
from rrpa_sidecar.pb.engine_pb2 import (
    Announce,
    AttachRequest,
    AttachResponse,
    Command,
    Hello,
    OpenStream,
    Rejected,
)
from rrpa_sidecar.pb.rrpa_pb2 import CreateStreamRequest
from rrpa_sidecar.shm.directory import PlainDirectory
from rrpa_sidecar.shm.doorbell import Bell, Ringer
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.writer import LogWriter
from rrpa_sidecar.status import MESSAGE_LIMIT_BYTES
from rrpa_sidecar.stream.events import Data, Event, Failed, Finished
from tests.control import raw_http2
from tests.control.engine import STREAM_BYTES, FakeClock, FakeEngine

HELLO_TIMEOUT_S = 0.6
SOON_S = 10  # for a busy machine; what has a limit of its own is timed


@dataclass
class Served:
    """A broker behind a real socket."""

    broker: Broker
    directory: PlainDirectory
    path: str
    all_made: list[FakeEngine] = field(default_factory=list)
    """Held here: an engine whose table nobody holds is dead."""

    def hello(self, **changes: object) -> Hello:
        """Return the Hello of an engine whose table exists in our directory."""
        self.made = FakeEngine(self.broker, self.directory, FakeClock(), ("test",), 2)
        self.all_made.append(self.made)
        return self.made.hello(**changes)

    def open(self, request_id: str = "mine") -> LiveStream:
        request = CreateStreamRequest(model="test").SerializeToString()
        return self.broker.open(request, Labels(request_id, "s"), None)


@pytest.fixture
async def served(config, shm, short_dir) -> AsyncIterator[Served]:
    config = replace(config, hello_timeout_s=HELLO_TIMEOUT_S, max_engines=2)
    clock = SystemClock()
    bell = Bell(str(short_dir / "e.sock.bell"))
    broker = Broker(config, shm, bell.path, Metrics(clock), clock)
    pump = Pump(broker, bell, config.sweep_interval_s)
    server = grpc.aio.server(options=engine_server_options(config))
    AttachService(broker, config).add_to(server)
    path = str(short_dir / "e.sock")
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    pump.start()
    yield Served(broker, shm, path)
    await server.stop(0)
    pump.close()
    bell.close()


class Attached:
    """A gRPC client of Attach."""

    def __init__(self, call: grpc.aio.StreamStreamCall) -> None:
        self.call = call
        self._heard: deque[Command] = deque()

    async def say(self, **event: object) -> None:
        await self.call.write(AttachRequest(**event))

    async def hear(self) -> Command:
        """Wait for the next command."""
        if not self._heard:
            answer = await asyncio.wait_for(self.call.read(), SOON_S)
            assert answer is not grpc.aio.EOF, await self.call.details()
            self._heard.extend(answer.commands)
        return self._heard.popleft()

    async def status(self) -> tuple[grpc.StatusCode, str]:
        """Wait for the call's end; gRPC tells the status after the last message was read."""
        async with asyncio.timeout(SOON_S):
            with contextlib.suppress(grpc.aio.AioRpcError):
                while await self.call.read() is not grpc.aio.EOF:
                    pass
            return await self.call.code(), await self.call.details()


@asynccontextmanager
async def engine(served: Served, **event: object) -> AsyncIterator[Attached]:
    """Call Attach and say the first message."""
    async with grpc.aio.insecure_channel(
        f"unix:{served.path}", options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        call = channel.stream_stream(
            "/rrpa.v1.EngineService/Attach",
            request_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
            response_deserializer=AttachResponse.FromString,
        )()
        attached = Attached(call)
        if event:
            await attached.say(**event)
        yield attached


async def until(condition, timeout_s: float = SOON_S) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


async def next_event(stream: LiveStream) -> Event:
    """Wait as a front end does: for the waker, not for time."""
    news = asyncio.Event()
    stream.waker = news.set
    async with asyncio.timeout(SOON_S):
        while (event := stream.poll()) is None:
            await news.wait()
            news.clear()
    return event


def log_of(served: Served, submit) -> LogWriter:
    return LogWriter.create(
        served.directory,
        submit.stream_id,
        stream_bytes=STREAM_BYTES,
        table=served.made.table,
        slot=submit.slot,
    )


# --- The ordinary way ---------------------------------------------------------------------


async def test_engine_is_welcomed_then_gets_a_stream_and_its_bell_brings_the_bytes(served):
    async with engine(served, hello=served.hello()) as attached:
        welcome = (await attached.hear()).welcome
        assert welcome.stream_bytes == STREAM_BYTES
        assert welcome.sidecar_version == __version__
        assert served.broker.ready
        stream = served.open()
        submit = (await attached.hear()).submit
        assert submit.stream_id == stream.stream_id
        assert submit.request == CreateStreamRequest(model="test").SerializeToString()
        assert submit.request_id == "mine"
        writer, bell = log_of(served, submit), Ringer(welcome.doorbell_path)
        writer.write(b"token")
        bell.ring()
        assert await next_event(stream) == Data(0, b"token")
        writer.finish(End(reason=1))
        bell.ring()
        assert isinstance(await next_event(stream), Finished)
        stream.leave()
        bell.close()


async def test_sweep_finds_what_a_lost_bell_did_not_announce(served):
    async with engine(served, hello=served.hello()) as attached:
        await attached.hear()
        stream = served.open()
        writer = log_of(served, (await attached.hear()).submit)
        writer.write(b"token")
        assert await next_event(stream) == Data(0, b"token")
        writer.close()


async def test_cancel_reaches_the_engine_once(served):
    async with engine(served, hello=served.hello()) as attached:
        await attached.hear()
        first, second = served.open(), served.open()
        submits = [(await attached.hear()).submit for _ in range(2)]
        first.leave()
        second.leave()
        assert (await attached.hear()).cancel.stream_id == first.stream_id
        assert (await attached.hear()).cancel.stream_id == second.stream_id
        for submit in submits:
            rejected = Rejected(stream_id=submit.stream_id, code=1, message="cancelled")
            await attached.say(rejected=rejected)
        await until(lambda: not served.broker.busy)


async def test_rejection_reaches_the_client(served):
    async with engine(served, hello=served.hello()) as attached:
        await attached.hear()
        stream = served.open()
        submit = (await attached.hear()).submit
        await attached.say(rejected=Rejected(stream_id=submit.stream_id, code=3, message="no"))
        event = await next_event(stream)
        assert isinstance(event, Failed)
        assert (event.error.code, str(event.error)) == (3, "no")


async def test_engine_that_ends_its_call_is_detached(served):
    async with engine(served, hello=served.hello()) as attached:
        await attached.hear()
        await attached.call.done_writing()
        assert await attached.status() == (grpc.StatusCode.OK, "")
        await until(lambda: served.broker.engines() == 0)
        assert not served.broker.ready


async def test_engine_that_drops_its_call_is_detached(served):
    async with engine(served, hello=served.hello()) as attached:
        await attached.hear()
        attached.call.cancel()
        await until(lambda: served.broker.engines() == 0, 1)


# --- Refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize("long_name", ["", "x" * 200])
async def test_engine_in_another_directory_is_refused_with_what_each_side_sees(
    served, short_dir, long_name
):
    elsewhere = short_dir / ("other" + long_name)
    elsewhere.mkdir()
    other = FakeEngine(served.broker, PlainDirectory(str(elsewhere)), FakeClock(), ("test",), 2)
    async with engine(served, hello=other.hello(shm_device=2**64 - 1)) as attached:
        code, text = await attached.status()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert text.startswith("engine's shared memory is not the sidecar's: engine uses /tmp/")
    assert f"(device {2**64 - 1}), sidecar /dev/shm/" in text
    assert text.endswith("mount the same volume into both")
    assert len(text.encode()) <= MESSAGE_LIMIT_BYTES
    assert served.broker.engines() == 0
    other.tidy()


INVALID = grpc.StatusCode.INVALID_ARGUMENT
LATE = grpc.StatusCode.DEADLINE_EXCEEDED
REFUSED = grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"engine_name": ""}, INVALID, "engine_name"),
        ({"engine_name": "../x"}, INVALID, "engine_name"),
        ({"engine_name": "a\nb"}, INVALID, "engine_name"),
        ({"engine_name": "x" * 65}, INVALID, "engine_name"),
        ({"engine_name": "é"}, INVALID, "engine_name"),
        ({"models": []}, INVALID, "models must be 1 to 64 names, not 0"),
        ({"models": ["m"] * 65}, INVALID, "not 65"),
        ({"models": ["ok", ""]}, INVALID, "each model"),
        ({"models": ["x" * 129]}, INVALID, "each model"),
        ({"models": ["a\0"]}, INVALID, "each model"),
        ({"capacity": 0}, INVALID, "capacity must be 1 to 65536, not 0"),
        ({"capacity": 65537}, INVALID, "not 65537"),
        ({"build": "b" * 257}, INVALID, "build"),
        ({"table_id": "../../etc/passwd"}, INVALID, "table_id"),
        ({"table_id": "A" * 32}, INVALID, "table_id"),
        ({"table_nonce": b"short"}, INVALID, "table_nonce must be 16 bytes, not 5"),
        ({"shm_dir": ""}, INVALID, "shm_dir"),
        ({"format_version": 2}, REFUSED, "format 2, the sidecar reads 1"),
        ({"boot_id": "another"}, REFUSED, "another machine"),
        ({"table_nonce": bytes(16)}, REFUSED, "nonce"),
        ({"capacity": 3}, REFUSED, "slots"),
        ({"table_id": "0" * 32}, REFUSED, "not found there"),
    ],
)
async def test_wrong_hello_is_refused_with_one_sentence(served, changes, code, says):
    async with engine(served, hello=served.hello(**changes)) as attached:
        found, text = await attached.status()
    assert (found, says in text) == (code, True), text
    assert len(text.encode()) <= MESSAGE_LIMIT_BYTES
    assert served.broker.engines() == 0


async def test_longest_allowed_hello_and_an_unknown_boot_id_are_welcome(served):
    models = [f"{number:02}".ljust(128, "m") for number in range(64)]
    hello = served.hello(models=models, engine_name="e" * 64, build="b" * 256, boot_id="")
    async with engine(served, hello=hello) as attached:
        assert (await attached.hear()).HasField("welcome")


async def test_second_hello_ends_the_call_and_the_engines_streams(served):
    hello = served.hello()
    async with engine(served, hello=hello) as attached:
        await attached.hear()
        stream = served.open()
        await attached.say(hello=hello)
        assert (await attached.status())[0] is INVALID
        event = await next_event(stream)
        assert isinstance(event, Failed)
        assert isinstance(event.error, EngineLost)


async def test_engine_that_errs_before_it_was_welcomed_is_told_why(served):
    """gRPC loses the status of a call whose first message was cancelled on its way."""
    for _ in range(60):
        hello = served.hello()
        async with engine(served, hello=hello) as attached:
            await attached.say(hello=hello)
            code, text = await attached.status()
            assert (code, "Hello came twice" in text) == (INVALID, True)


@pytest.mark.parametrize("event", [{"rejected": Rejected(stream_id="x", code=3)}, {}])
async def test_first_message_that_is_no_hello_is_refused(served, event):
    async with engine(served) as attached:
        await attached.say(**event)
        assert await attached.status() == (INVALID, "the first message must be Hello")


async def test_message_of_a_later_version_is_ignored(served):
    async with engine(served, hello=served.hello()) as attached:
        await attached.hear()
        await attached.call.write(b"\xfa\x3e\x03abc")
        stream = served.open()
        assert (await attached.hear()).submit.stream_id == stream.stream_id


async def test_engine_beyond_the_limit_is_refused_with_the_limit(served):
    async with (
        engine(served, hello=served.hello()) as one,
        engine(served, hello=served.hello()) as two,
    ):
        await one.hear()
        await two.hear()
        async with engine(served, hello=served.hello()) as three:
            code, text = await three.status()
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "the limit is 2 (--max-engines)" in text
        assert served.broker.engines() == 2


async def test_draining_sidecar_takes_no_engine_and_keeps_those_it_has(served):
    async with engine(served, hello=served.hello()) as one:
        await one.hear()
        served.broker.drain()
        async with engine(served, hello=served.hello()) as two:
            assert (await two.status())[0] is grpc.StatusCode.UNAVAILABLE
        assert served.broker.engines() == 1


# --- Streams of earlier attachments -------------------------------------------------------


def open_streams(*numbers: int, **changes: object) -> Announce:
    """An Announce of streams that have not begun."""
    return Announce(
        streams=[OpenStream(stream_id=f"{n:032x}", model="test", **changes) for n in numbers]
    )


async def test_announced_streams_are_adopted_after_welcome_and_before_any_new_one(served):
    async with engine(served, hello=served.hello(announced=2)) as attached:
        await attached.say(announce=open_streams(1))
        await attached.say(announce=open_streams(2))
        assert (await attached.hear()).HasField("welcome")
        served.open()
        adopted = [(await attached.hear()).adopt for _ in range(2)]
        assert [(each.stream_id, each.slot) for each in adopted] == [
            (f"{n:032x}", n - 1) for n in (1, 2)
        ]
        assert served.broker.queue_length() == 1  # the slots are taken


async def test_stream_announced_later_is_adopted_too_without_a_slot_when_none_is_free(served):
    async with engine(served, hello=served.hello()) as attached:
        await attached.hear()
        await attached.say(announce=open_streams(1, 2, 3))
        adopted = [(await attached.hear()).adopt for _ in range(3)]
        assert [each.HasField("slot") for each in adopted] == [True, True, False]


async def test_engine_is_not_attached_before_all_that_it_announced_has_come(served):
    async with engine(served, hello=served.hello(announced=2)) as attached:
        await attached.say(announce=open_streams(1))
        code, text = await attached.status()
        assert (code, text) == (LATE, "no Announce of 1 streams within 0.6 s")
    assert served.broker.engines() == 0
    assert not served.broker.busy


async def test_engine_that_ends_its_call_amid_its_announcements_leaves_nothing(served):
    async with engine(served, hello=served.hello(announced=2)) as attached:
        await attached.say(announce=open_streams(1))
        await attached.call.done_writing()
        assert await attached.status() == (INVALID, "the call ended before Announce of 1 streams")
    assert not served.broker.busy


@pytest.mark.parametrize(
    ("hello", "events", "says"),
    [
        ({"announced": 3}, [], "announced must be at most its capacity, 2, not 3"),
        ({"announced": 1}, [{"rejected": Rejected(stream_id="x", code=3)}], "before any other"),
        ({"announced": 1}, [{"announce": open_streams(1, 2)}], "announced 1 streams, but 2 came"),
        ({"announced": 2}, [{"announce": open_streams(1, 1)}], "came twice"),
        ({"announced": 1}, [{"announce": Announce()}], "no streams"),
        ({"announced": 1}, [{"announce": open_streams(1, request_id="\n")}], "request_id"),
        ({}, [{"announce": open_streams(1)}, {"announce": open_streams(2, 1)}], "came twice"),
        ({}, [{"announce": Announce(streams=[OpenStream(model="test")])}], "stream_id"),
        ({}, [{"announce": Announce()}], "no streams"),
    ],
)
async def test_wrong_announcement_ends_the_attachment_with_one_sentence(
    served, hello, events, says
):
    async with healthy_engine(served), engine(served, hello=served.hello(**hello)) as attached:
        for event in events:
            await attached.say(**event)
        code, text = await attached.status()
        assert (code, says in text) == (INVALID, True), text
        assert len(text.encode()) <= MESSAGE_LIMIT_BYTES


async def test_draining_is_said_to_every_engine_and_ends_no_attachment(served):
    async with engine(served, hello=served.hello()) as attached:
        await attached.hear()
        served.broker.drain()
        served.broker.send_engines_on()
        assert (await attached.hear()).HasField("draining")
        assert served.broker.engines() == 1


# --- Peers that are no engines (G13) ------------------------------------------------------


@asynccontextmanager
async def healthy_engine(served: Served) -> AsyncIterator[None]:
    """An engine that is attached all the while and serves a stream afterwards."""
    async with engine(served, hello=served.hello()) as attached:
        await attached.hear()
        yield
        stream = served.open()
        writer = log_of(served, (await attached.hear()).submit)
        writer.write(b"still here")
        assert await next_event(stream) == Data(0, b"still here")
        writer.close()
        assert served.broker.engines() == 1


async def send_raw(served: Served, *pieces: bytes) -> float:
    """Send bytes as they are; return the seconds until the sidecar closed the connection."""
    reader, writer = await asyncio.open_unix_connection(served.path)
    began = time.monotonic()
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    try:
        async with asyncio.timeout(SOON_S):
            while await reader.read(65536):
                pass
    except ConnectionResetError:
        pass
    writer.close()
    return time.monotonic() - began


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0" * 64,
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"\xff" * 70_000,
    ],
)
async def test_garbage_closes_its_own_connection_only(served, garbage):
    async with healthy_engine(served):
        assert await send_raw(served, garbage) < SOON_S


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        raw_http2.PREFACE[:10],
        raw_http2.PREFACE,
        raw_http2.PREFACE + raw_http2.frame(raw_http2.SETTINGS, 0, 0, b""),
        raw_http2.attach_call()[:-1],
    ],
    ids=["nothing", "half preface", "preface", "no call", "half a call"],
)
async def test_connection_without_a_call_is_closed_after_the_timeout(served, beginning):
    async with healthy_engine(served):
        assert HELLO_TIMEOUT_S * 0.5 < await send_raw(served, beginning) < SOON_S


async def test_call_without_a_hello_is_refused_after_the_timeout(served):
    async with healthy_engine(served), engine(served) as attached:
        await attached.call.wait_for_connection()
        began = time.monotonic()
        code, text = await attached.status()
        assert (code, text) == (LATE, "no Hello within 0.6 s")
        assert time.monotonic() - began < SOON_S


async def test_half_a_message_then_close_leaves_nothing(served):
    hello = AttachRequest(hello=served.hello()).SerializeToString()
    async with healthy_engine(served):
        _, writer = await asyncio.open_unix_connection(served.path)
        writer.write(raw_http2.attach_call() + raw_http2.message(hello[:20], length=len(hello)))
        await writer.drain()
        await asyncio.sleep(0.05)  # let it arrive; nothing depends on how much
        writer.close()
    assert served.broker.engines() <= 1


async def test_hello_that_comes_byte_by_byte_is_welcome(served):
    hello = AttachRequest(hello=served.hello()).SerializeToString()
    whole = raw_http2.attach_call() + raw_http2.message(hello)
    _, writer = await asyncio.open_unix_connection(served.path)
    for byte in whole:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0)
    await until(lambda: served.broker.engines() == 1)
    writer.close()
    await until(lambda: served.broker.engines() == 0)


async def test_two_messages_in_one_write_are_two_messages(served):
    hello = AttachRequest(hello=served.hello()).SerializeToString()
    rejected = AttachRequest(rejected=Rejected(stream_id="x", code=3)).SerializeToString()
    _, writer = await asyncio.open_unix_connection(served.path)
    two = raw_http2.message(hello) + raw_http2.message(rejected)
    writer.write(raw_http2.attach_call() + two)
    await until(lambda: served.broker.engines() == 1)
    writer.close()
    await until(lambda: served.broker.engines() == 0)


def hello_of(size: int) -> bytes:
    """Return a serialized first message of exactly `size` bytes."""
    for build in range(size, size - 16, -1):
        raw = AttachRequest(hello=Hello(build="b" * build)).SerializeToString()
        if len(raw) == size:
            return raw
    raise AssertionError(size)


@pytest.mark.parametrize(
    ("size", "code"),
    [
        (HELLO_LIMIT_BYTES - 1, INVALID),  # read, and found wrong
        (HELLO_LIMIT_BYTES, INVALID),
        (HELLO_LIMIT_BYTES + 1, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (10_000_000, grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
)
async def test_message_over_the_limit_is_refused_alone(served, size, code):
    async with healthy_engine(served), engine(served) as attached:
        with contextlib.suppress(grpc.aio.AioRpcError):  # refused before all of it was sent
            await attached.call.write(hello_of(size))
        assert (await attached.status())[0] is code


@pytest.mark.parametrize("when", ["first", "later"])
async def test_message_that_is_no_protobuf_is_refused_alone_without_a_traceback(
    served, caplog, when
):
    async with healthy_engine(served), engine(served) as attached:
        if when == "later":
            await attached.say(hello=served.hello())
            await attached.hear()
        await attached.call.write(b"\xff\xff\xff")
        assert await attached.status() == (INVALID, "the message is not a rrpa.v1.AttachRequest")
    assert not [record for record in caplog.records if record.exc_info]


# --- Faults of ours -----------------------------------------------------------------------


@pytest.mark.parametrize("task_name", ["_read", "_write"])
async def test_interrupted_attachment_has_a_status_and_its_streams_an_error(served, task_name):
    async with engine(served, hello=served.hello()) as attached:
        await attached.hear()
        stream = served.open()
        await attached.hear()
        for task in asyncio.all_tasks():
            if task.get_coro().__qualname__ == f"AttachService.{task_name}":
                task.cancel()
        assert (await attached.status())[0] is grpc.StatusCode.UNAVAILABLE
        event = await next_event(stream)
        assert isinstance(event, Failed)
        assert isinstance(event.error, EngineLost)


class SilentContext:
    """A call whose engine says nothing, and does not take what it is told."""

    async def read(self) -> None:
        await asyncio.Event().wait()

    async def write(self, message: AttachResponse) -> None:
        await asyncio.Event().wait()


async def test_attachment_that_is_interrupted_twice_leaves_no_task_behind(broker, config):
    """gRPC cancels a handler when the call is over, and again when the server stops."""
    outbox = Outbox(1)
    outbox.draining()
    talking = asyncio.create_task(
        AttachService(broker, config)._talk(None, outbox, SilentContext())
    )
    await asyncio.sleep(0.01)
    for _ in range(2):
        talking.cancel()
        await asyncio.sleep(0)
    await asyncio.wait({talking})
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_engine_with_a_corrupt_table_is_told_so(served):
    async with engine(served, hello=served.hello()) as attached:
        await attached.hear()
        os.truncate(f"{served.directory.path}/rrpa_table_{served.made.table_id}", 65536)
        served.broker.scan()
        assert (await attached.status())[0] is grpc.StatusCode.DATA_LOSS


# --- Death --------------------------------------------------------------------------------


async def start_killable(served: Served) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.control.killable_engine", served.path, served.directory.path
    )
    await until(lambda: served.broker.engines() == 1, 20)
    return process


async def test_killed_engine_is_an_error_for_its_streams_within_a_second(served):
    process = await start_killable(served)
    spoke, silent = served.open(), served.open("silent")
    assert await next_event(spoke) == Data(0, b"committed before the kill")
    await until(lambda: f"rrpa_{silent.stream_id}" in served.directory.names())
    process.send_signal(signal.SIGKILL)
    await process.wait()
    began = time.monotonic()
    for stream, received in ((spoke, 25), (silent, 0)):
        event = await next_event(stream)
        assert isinstance(event, Failed)
        assert isinstance(event.error, EngineLost)
        assert event.offset == received
    assert time.monotonic() - began < 1
    assert not served.broker.ready
    spoke.leave()
    silent.leave()
    await until(lambda: not served.broker.busy)
    assert served.directory.names() == []


async def test_engine_that_comes_back_after_a_kill_serves_on(served):
    first = await start_killable(served)
    first.send_signal(signal.SIGKILL)
    await first.wait()
    await until(lambda: served.broker.engines() == 0)
    second = await start_killable(served)
    stream = served.open()
    assert await next_event(stream) == Data(0, b"committed before the kill")
    second.send_signal(signal.SIGKILL)
    await second.wait()
    assert isinstance(await next_event(stream), Failed)


def test_socket_path_of_the_tests_is_short_enough(short_dir):
    with socket.socket(socket.AF_UNIX) as probe:
        probe.bind(str(short_dir / "e.sock"))
