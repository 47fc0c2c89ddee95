"""Hostile peers seen from inside: which streams were left, what is held. More: tests/hostile."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from rrpa_sidecar.frontend.batched import liveness as timing
from rrpa_sidecar.frontend.batched import state
from rrpa_sidecar.frontend.batched.server import BatchedServer
from tests.frontend.fakes import MODELS, STREAM, Front, front_end
from tests.harness import raw_h2
from tests.harness.raw_h2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
)
from tests.hostile.frames import CALM, block, call, frame
from tests.hostile.frames import head as opened


@pytest_asyncio.fixture
async def front(batched_front: Front) -> AsyncIterator[Front]:
    """A front end with a neighbour on it, whose stream must arrive whole whatever happens."""
    neighbour = batched_front.stream()
    while not batched_front.broker.streams:
        await asyncio.sleep(0.001)
    held = batched_front.broker.streams[0]
    held.data(b"before")
    assert await neighbour.read()
    yield batched_front
    held.data(b"after")
    held.finish()
    async with asyncio.timeout(2):
        assert await neighbour.read()
        assert await neighbour.read()
        assert await neighbour.read() is grpc.aio.EOF
    assert await neighbour.code() is grpc.StatusCode.OK
    assert batched_front.handlers.open_calls == 0
    server = batched_front.handlers
    assert isinstance(server, BatchedServer)
    assert server.held.bytes == 0


def path_of(front: Front) -> str:
    return front.address.removeprefix("unix:")


async def told(front: Front, work: Callable[[raw_h2.Connection], Any], greet: bool = True) -> Any:
    """Run `work` with a connection, in a thread."""

    def run() -> Any:
        with raw_h2.Connection(path_of(front), greet=greet) as peer:
            return work(peer)

    return await asyncio.to_thread(run)


def rest_of(peer: raw_h2.Connection) -> bytes:
    """Return all that the peer is told up to the end of its connection. Nothing is sent."""
    peer.socket.settimeout(30)
    raw = b""
    try:
        while part := peer.socket.recv(65536):
            raw += part
    except (BrokenPipeError, ConnectionResetError):
        pass
    return raw


def code_of(raw: bytes) -> int | None:
    """Return the error code of the GOAWAY in `raw`."""
    while len(raw) >= 17:
        length = int.from_bytes(raw[:3], "big")
        if raw[3] == GOAWAY:
            return int.from_bytes(raw[13:17], "big")
        raw = raw[9 + length :]
    return None


def goaway_after(raw: bytes, times: int = 1) -> Callable[[raw_h2.Connection], int | None]:
    """Send `raw` again and again; return the error code of the GOAWAY."""

    def work(peer: raw_h2.Connection) -> int | None:
        try:
            for _ in range(times):
                peer.socket.sendall(raw)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return code_of(rest_of(peer))

    return work


async def test_rapid_reset_ends_its_connection_and_every_stream_is_left(front: Front) -> None:
    def work(peer: raw_h2.Connection) -> int | None:
        for at in range(1, 40_001, 2):
            raw = call(at) + frame(RST_STREAM, b"\0\0\0\x08", stream=at)
            try:
                peer.socket.sendall(raw)
            except (BrokenPipeError, ConnectionResetError):
                break
        return goaway_after(b"")(peer)

    assert await told(front, work) == CALM
    assert len(front.broker.streams) < 15_000
    await asyncio.sleep(0.05)
    assert all(stream.left == 1 for stream in front.broker.streams[1:])


async def test_a_second_request_on_a_stream_resets_it_and_it_is_left(front: Front) -> None:
    def work(peer: raw_h2.Connection) -> raw_h2.Frame | None:
        peer.socket.sendall(call(1))
        peer.until(HEADERS)
        peer.socket.sendall(call(1))
        return peer.until(RST_STREAM)

    reset = await told(front, work)
    assert reset is not None
    assert reset.stream == 1
    assert front.broker.streams[1].left == 1


def status_in(frames: list[raw_h2.Frame]) -> dict[str, str]:
    return {k.decode(): v.decode() for each in frames for k, v in each.headers}


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (frame(DATA, b"", END_STREAM, 1), "3"),
        (frame(DATA, b"\0\0\0", END_STREAM, 1), "3"),
        (frame(DATA, b"\0\0\0\0\5abc", END_STREAM, 1), "3"),
        (frame(DATA, b"\0\0\0\0\0" * 2, END_STREAM, 1), "3"),
        (frame(DATA, b"\1\0\0\0\1x", END_STREAM, 1), "3"),
        (frame(DATA, b"\7\0\0\0\1x", END_STREAM, 1), "3"),
        (frame(DATA, b"\0\xff\xff\xff\xff", 0, 1), "8"),
    ],
    ids=["none", "cut prefix", "cut message", "two", "compressed", "no flag", "huge"],
)
async def test_a_wrong_request_is_refused_alone(front: Front, raw: bytes, code: str) -> None:
    def work(peer: raw_h2.Connection) -> tuple[dict[str, str], dict[str, str]]:
        peer.socket.sendall(opened(1) + raw)
        first = status_in(peer.answer(1))
        peer.socket.sendall(frame(HEADERS, block(path=MODELS), END_HEADERS, 3))
        peer.socket.sendall(frame(DATA, b"\0\0\0\0\0", END_STREAM, 3))
        answer = peer.answer(3)
        return first, {"data": str(sum(len(f.payload) for f in answer if f.kind == DATA))}

    first, second = await told(front, work)
    assert first["grpc-status"] == code, first
    assert int(second["data"]) > 5, "the connection goes on"
    assert len(front.broker.streams) == 1


async def test_requests_with_another_encoding_are_unimplemented_and_told_what_is_taken(
    front: Front,
) -> None:
    asked = front.channel.unary_stream(STREAM)
    reply = asked(b"x" * 100, compression=grpc.Compression.Gzip)
    assert await reply.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "gzip" in await reply.details()

    def work(peer: raw_h2.Connection) -> dict[str, str]:
        head = block((b"grpc-encoding", b"gzip"))
        peer.socket.sendall(frame(HEADERS, head, END_HEADERS, 1))
        return status_in(peer.answer(1))

    assert (await told(front, work))["grpc-accept-encoding"] == "identity"


async def test_the_most_streams_are_announced_at_once_and_one_more_is_refused_alone(
    short_dir: Path,
) -> None:
    async with front_end(short_dir, "batched", shm_bytes=2**24, queue_limit=0) as front:
        server = front.handlers
        assert isinstance(server, BatchedServer)
        server.streams_limit = 10

        def work(peer: raw_h2.Connection) -> tuple[int, raw_h2.Frame | None]:
            head = peer._take(9, 30)
            assert head is not None
            assert head[3] == SETTINGS
            settings = peer._take(int.from_bytes(head[:3], "big"), 30) or b""
            pairs = dict(struct.iter_unpack(">HI", settings))
            for at in range(1, 23, 2):
                peer.socket.sendall(call(at))
            return pairs[3], peer.until(RST_STREAM)

        announced, refused = await told(front, work)
        assert announced == 10
        assert refused is not None
        assert (refused.stream, refused.payload[-1]) == (21, 7)
        assert len(front.broker.streams) == 10


async def test_requests_that_never_end_hold_no_more_than_the_limit_and_give_it_back(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mib = 2**20
    # The client of this test does not look at windows.
    monkeypatch.setattr(state, "STREAM_WINDOW", 4 * mib)
    monkeypatch.setattr(state, "CONNECTION_WINDOW", 16 * mib)
    async with front_end(short_dir, "batched", queue_bytes=mib, max_request_bytes=mib) as front:
        server = front.handlers
        assert isinstance(server, BatchedServer)

        def work(peer: raw_h2.Connection) -> tuple[dict[str, str], int]:
            for stream in (1, 3, 5):
                peer.socket.sendall(frame(HEADERS, block(), END_HEADERS, stream))
                raw = b"\0" + struct.pack(">L", mib) + bytes(900_000)
                for at in range(0, len(raw), 16_384):
                    peer.socket.sendall(frame(DATA, raw[at : at + 16_384], 0, stream))
            return status_in(peer.answer(5)), server.held.bytes

        refused, held = await told(front, work)
        assert refused["grpc-status"] == "8"
        assert "--queue-bytes" in refused["grpc-message"]
        assert held < 2 * mib
        async with asyncio.timeout(2):
            while server.held.bytes:
                await asyncio.sleep(0.001)


async def test_a_peer_that_answers_no_ping_is_gone_and_one_that_does_is_kept(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "GREETING_S", 0.1)
    monkeypatch.setattr(timing, "KEEPALIVE_S", 0.2)
    monkeypatch.setattr(timing, "KEEPALIVE_TIMEOUT_S", 0.2)

    def deaf(peer: raw_h2.Connection) -> bool:
        peer.socket.sendall(call(1))
        return peer.is_closed(3)

    def lively(peer: raw_h2.Connection) -> int:
        pings = 0
        while pings < 3:
            each = peer.until(PING, timeout_s=30)  # answered there
            assert each is not None
            pings += not each.flags & ACK
        return pings

    closed, pings = await asyncio.gather(told(front, deaf), told(front, lively))
    assert closed
    assert pings == 3
    assert front.broker.streams[1].left == 1


async def test_a_peer_that_never_reads_makes_us_keep_little(front: Front) -> None:
    """It asks for answers to pings and takes none: reading stops, and memory stays."""

    def work(peer: raw_h2.Connection) -> int:
        sent = 0
        peer.socket.settimeout(1)
        try:
            while sent < 100_000_000:
                sent += peer.socket.send(frame(PING, b"pingpong") * 500)
        except (TimeoutError, BrokenPipeError, ConnectionResetError):
            pass
        return sent

    assert await told(front, work) < 10_000_000


async def test_a_zero_window_for_ever_holds_one_message_and_the_deadline_still_ends_it(
    front: Front,
) -> None:
    def work(peer: raw_h2.Connection) -> list[raw_h2.Frame]:
        peer.send(SETTINGS, b"\0\4" + bytes(4))
        head = block((b"grpc-timeout", b"300m"))
        peer.socket.sendall(frame(HEADERS, head, END_HEADERS, 1))
        peer.socket.sendall(frame(DATA, b"\0\0\0\0\0", END_STREAM, 1))
        return peer.answer(1)

    asking = asyncio.create_task(told(front, work))
    while len(front.broker.streams) < 2:
        await asyncio.sleep(0.001)
    stream = front.broker.streams[1]
    for _ in range(100):
        stream.data(b"nobody reads this")
    frames = await asking
    assert status_in(frames)["grpc-status"] == "4"
    assert not [each for each in frames if each.kind == DATA]
    assert len(stream.events) >= 98
    assert stream.left == 1


async def test_a_drain_lets_calls_end_and_refuses_new_ones(short_dir: Path) -> None:
    async with front_end(short_dir, "batched") as front:
        server = front.handlers
        assert isinstance(server, BatchedServer)
        drained = threading.Event()

        def work(peer: raw_h2.Connection) -> tuple[Any, ...]:
            peer.socket.sendall(call(1))
            head = peer.until(HEADERS)
            last = peer.until(GOAWAY)
            peer.socket.sendall(call(3))
            refused = peer.until(RST_STREAM)
            drained.set()
            return last, refused, [head, *peer.answer(1)], peer.is_closed()

        asking = asyncio.create_task(told(front, work))
        while not front.broker.streams:
            await asyncio.sleep(0.001)
        stopping = asyncio.create_task(server.stop(5))
        await asyncio.to_thread(drained.wait, 5)
        front.broker.streams[0].data(b"the end")
        front.broker.streams[0].finish()
        last, refused, frames, closed = await asking
        await stopping
        assert struct.unpack(">II", last.payload[:8]) == (1, 0)
        assert (refused.stream, refused.payload[-1]) == (3, 7)
        assert status_in(frames)["grpc-status"] == "0"
        assert closed
