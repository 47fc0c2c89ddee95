"""The whole data plane in one process: engines' files, broker, connections and peers are real.

Only the transport and the time are the test's: what is written waits until the peer reads it, so
that any order of steps, reads and window updates can be tried, thousands in a second.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes

from rrpa_sidecar.config import Config
from rrpa_sidecar.control.broker import Broker
from rrpa_sidecar.frontend import methods
from rrpa_sidecar.frontend.batched.connection import Connection
from rrpa_sidecar.frontend.batched.server import BatchedServer
from rrpa_sidecar.frontend.health import Health
from rrpa_sidecar.frontend.metadata import OFFSET, SERVER_STREAM_ID
from rrpa_sidecar.metrics import Metrics
from rrpa_sidecar.pb import rrpa_pb2 as pb
from rrpa_sidecar.shm.directory import PlainDirectory
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.status import Code
from tests.control.engine import STREAM_BYTES, FakeClock, FakeEngine, Submitted

ALL = 1 << 30
WINDOWS = (0, 1, 100, 16_383, 16_384, 16_385, 65_535, 65_536, 1 << 20, 1 << 20, 1 << 20)
FRAMES = (16_384, 16_385, 65_535, 1 << 20)
FIELDS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "x"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)


class Wire:
    """A transport whose other end reads when it likes."""

    def __init__(self) -> None:
        self.unread = bytearray()
        self.protocol: Any = None
        self.may_send = True
        self.pauses = 0
        self._paused = False
        self._high = 0

    def set_write_buffer_limits(self, high: int) -> None:
        self._high = high

    def get_write_buffer_size(self) -> int:
        return len(self.unread)

    def write(self, data: bytes) -> None:
        self.unread += data
        if len(self.unread) > self._high and not self._paused:
            self._paused = True
            self.pauses += 1
            self.protocol.pause_writing()

    def take(self, most: int) -> bytes:
        taken = bytes(self.unread[:most])
        del self.unread[:most]
        if self._paused and len(self.unread) <= self._high // 4:
            self._paused = False
            self.protocol.resume_writing()
        return taken

    def pause_reading(self) -> None:
        self.may_send = False

    def resume_reading(self) -> None:
        self.may_send = True


@dataclass
class Call:
    """One call, and what came of it."""

    stream: int
    raw: bytes = b""
    data: bytes = b""
    frames: int = 0
    name: str = ""
    """The sidecar's id of the stream."""
    status: str = ""
    offset: int | None = None
    finished: bool = False
    cancelled: bool = False
    over: bool = False


class Client(H2Connection):
    """h2's client, which takes its own settings for valid when they are acknowledged, and ends
    the connection for one byte beyond a window."""

    went_away = False

    def _receive_goaway_frame(self, frame: Any) -> tuple[list[Any], list[Any]]:
        assert frame.error_code == 0, frame
        self.went_away = True
        return [], []


class Peer:
    """A client and its connection."""

    def __init__(self, server: BatchedServer, rng: random.Random) -> None:
        self._rng = rng
        self.h2 = Client(H2Configuration(header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: rng.choice(WINDOWS)})
        if rng.random() < 0.5:
            self.h2.increment_flow_control_window(1 << 24)  # so that the transport is what stops
        self.wire = Wire()
        self.connection = self.wire.protocol = Connection(server)
        self.connection.connection_made(self.wire)  # type: ignore[arg-type]
        self.calls: dict[int, Call] = {}
        self.slow = rng.random() < 0.3
        self._owed: Counter[int] = Counter()
        self._unsent = self._part = b""

    def call(self, timeout_ms: int | None = None) -> None:
        stream = self.h2.get_next_available_stream_id()
        extra = [("grpc-timeout", f"{timeout_ms}m")] if timeout_ms else []
        self.h2.send_headers(stream, [(":path", methods.CREATE_STREAM), *FIELDS, *extra])
        body = pb.CreateStreamRequest(model="test").SerializeToString()
        prefix = struct.pack(">BL", 0, len(body))
        self.h2.send_data(stream, prefix + body, end_stream=True)
        self.calls[stream] = Call(stream)

    def cancel(self) -> None:
        open_calls = [call for call in self.calls.values() if not (call.over or call.cancelled)]
        if open_calls:
            call = self._rng.choice(open_calls)
            call.cancelled = True
            self.h2.reset_stream(call.stream, 8)

    def change(self, window: int, frame: int | None = None) -> None:
        """Change settings, one set at a time: h2 takes one ACK for all that wait."""
        if all(len(waiting) < 2 for waiting in self.h2.local_settings._settings.values()):
            settings = {SettingCodes.INITIAL_WINDOW_SIZE: window}
            self.h2.update_settings(
                settings | ({SettingCodes.MAX_FRAME_SIZE: frame} if frame else {})
            )

    def send(self) -> None:
        """Let the server read what the client says, cut anywhere."""
        self._unsent += self.h2.data_to_send()
        if self._unsent and self.wire.may_send:
            cut = self._rng.choice(
                [len(self._unsent), self._rng.randrange(1, len(self._unsent) + 1)]
            )
            now, self._unsent = self._unsent[:cut], self._unsent[cut:]
            self.connection.data_received(now)

    def read(self, most: int = ALL) -> None:
        self._part += self.wire.take(most)
        # Frame by frame: h2 looks up its limit of a frame once for all that it is given.
        while len(self._part) >= (size := 9 + int.from_bytes(self._part[:3], "big")):
            frame, self._part = self._part[:size], self._part[size:]
            for event in self.h2.receive_data(frame):
                self._take(event)

    def give(self, most: int = ALL) -> None:
        """Give windows back, at most so much to each."""
        for stream, owed in list(self._owed.items()):
            amount = min(owed, most)
            if stream == 0 or not (self.calls[stream].over or self.calls[stream].cancelled):
                self.h2.increment_flow_control_window(amount, stream or None)
            self._owed[stream] -= amount
        self._owed += Counter()  # drops what is 0

    @property
    def at_rest(self) -> bool:
        """Whether every call is over, and both sides know it."""
        over = all(call.over or call.cancelled for call in self.calls.values())
        return over and not self._unsent and self.connection.is_idle

    def _take(self, event: Any) -> None:
        call = self.calls.get(getattr(event, "stream_id", 0))
        if isinstance(event, events.ResponseReceived | events.TrailersReceived):
            assert call is not None
            fields = dict(event.headers)
            call.name = fields.get(SERVER_STREAM_ID, call.name)
            call.status = fields.get("grpc-status", call.status)
            if OFFSET in fields:
                call.offset = int(fields[OFFSET])
        elif isinstance(event, events.DataReceived):
            assert call is not None
            for stream in (0, call.stream):
                self._owed[stream] += event.flow_controlled_length
            call.raw += event.data
            _take_messages(call)
        elif isinstance(event, events.StreamEnded | events.StreamReset):
            assert call is not None
            call.over = True


def _take_messages(call: Call) -> None:
    while len(call.raw) >= 5 and len(call.raw) >= (
        size := 5 + int.from_bytes(call.raw[1:5], "big")
    ):
        message = pb.CreateStreamResponse.FromString(call.raw[5:size])
        assert message.offset == len(call.data), "every byte once and in order"
        call.finished = message.HasField("finish")
        call.frames += bool(message.data)
        call.data += message.data
        call.raw = call.raw[size:]


def token(rng: random.Random) -> bytes:
    """Mostly as models write; cut characters, nonsense, and now and then too much for one frame."""
    kind = rng.random()
    if kind < 0.6:
        return rng.randbytes(4).hex()[: rng.randrange(1, 8)].encode()
    if kind < 0.8:
        return "€uro😀ü".encode()[rng.randrange(8) :][: rng.randrange(1, 6)]
    if kind < 0.97:
        return rng.randbytes(rng.randrange(1, 60))
    return rng.choice([b"\xff", b"m"]) * rng.choice([4095, 4096, 4097, 16_384, 30_000])


@dataclass
class Plane:
    """Engines, sidecar and peers, and what was written."""

    directory: PlainDirectory
    rng: random.Random
    clock: FakeClock = field(default_factory=FakeClock)
    written: dict[str, bytes] = field(default_factory=dict)
    ends: dict[str, str] = field(default_factory=dict)
    """Stream → how its engine ended it."""
    engines: list[FakeEngine] = field(default_factory=list)
    peers: list[Peer] = field(default_factory=list)
    lied_about: set[str] = field(default_factory=set)
    token: Callable[[random.Random], bytes] = token

    def start(self) -> None:
        """Begin, in the running loop."""
        config = Config(
            shm_dir=self.directory.path,
            stream_bytes=STREAM_BYTES,
            shm_bytes=40 * STREAM_BYTES,
            queue_limit=50,
        )
        self.metrics = Metrics(self.clock)
        self.broker = Broker(config, self.directory, "/tmp/bell", self.metrics, self.clock)
        self.server = BatchedServer(config, self.broker, self.metrics, self.clock, Health())
        self.broker.short_way = self.server.step
        self.attach()
        self.meet()

    def attach(self) -> None:
        capacity = self.rng.choice([1, 2, 3, 8, 100])
        made = FakeEngine(self.broker, self.directory, self.clock, ("test",), capacity)
        self.engines.append(made.attach())

    def meet(self) -> None:
        self.peers.append(Peer(self.server, self.rng))

    def kill(self) -> None:
        """Kill the last engine, and attach another."""
        for submitted in self.engines[-1].submitted:
            self.ends.setdefault(submitted.stream_id, "lost")
        self.engines[-1].die()
        self.attach()

    def step(self, engine: FakeEngine) -> None:
        """One step of an engine: most of its streams go on, some end."""
        for submitted in engine.submitted:
            if submitted.stream_id not in self.ends and self.rng.random() < 0.7:
                self._go_on(engine, submitted)

    def _go_on(self, engine: FakeEngine, submitted: Submitted) -> None:
        name, rng = submitted.stream_id, self.rng
        if name in engine.cancelled:
            self.end(engine, name, "cancelled")
            return
        writer = engine.writers.get(name) or engine.begin(name)
        for _ in range(rng.choice([0, 1, 1, 1, 1, 2, 3])):
            text = self.token(rng)
            if writer.committed_bytes + len(text) <= writer.capacity_bytes:
                writer.write(text)
                self.written[name] = self.written.get(name, b"") + text
        if rng.random() < 0.04:
            self.end(engine, name, rng.choice(["finished", "finished", "failed", "lost"]))

    def end(self, engine: FakeEngine, name: str, how: str) -> None:
        writer = engine.writers.get(name)
        self.ends[name] = how
        if writer is None and how == "cancelled":
            self.broker.rejected(engine.engine, name, Code.CANCELLED, "cancelled")
        elif how == "lost":
            (writer or engine.begin(name)).close()
        else:
            ends = {"finished": End(reason=1), "cancelled": End(reason=4)}
            (writer or engine.begin(name)).finish(ends.get(how, End(code=13, reason=5)))

    async def settle(self) -> None:
        """End all answers and read them to their ends."""
        for _ in range(3000):
            for engine in self.engines:
                for submitted in engine.submitted:
                    if submitted.stream_id not in self.ends:
                        self.end(engine, submitted.stream_id, "finished")
                if engine.closed:  # an engine's library leaves the table of an ended attachment
                    engine.table.close()
            self.clock.jump_s(0.05)
            self.broker.sweep()
            for peer in self.peers:
                if peer.h2.local_settings.initial_window_size < 1 << 20:
                    peer.change(1 << 20)
                peer.read()
                peer.give()
                peer.send()
            await asyncio.sleep(0)
            if not self.broker.busy and all(peer.at_rest for peer in self.peers):
                return
        raise AssertionError(f"calls stay open: {self.broker._streams.values()}")

    def close(self) -> None:
        for engine in self.engines:
            engine.tidy()
            if engine.engine is not None:
                engine.engine.table.close()
        for peer in self.peers:
            peer.connection._shut()
