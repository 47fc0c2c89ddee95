"""Each stage of a token's way, beside its floor: what the machine takes for that work alone.

The product's own functions run in this process, over real logs and a real table in /dev/shm, for
steps of 512 tokens: written, found, read, packed, joined, sent. Beside each stage stands its
floor: the bare system call, or a copy of the bytes, in Python too. So a stage that is near its
floor cannot become much cheaper in this language, and one that is far from it could.

CPU time of this thread, per token; each round gives every stage and every floor the same number
of steps, in turns. "whole" is what a step costs the sidecar from the bell to the socket; it
contains rows above it and is not their sum.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import uvloop
from h2.connection import H2Connection

from benchmarks.machine import machine
from benchmarks.picture import Dot, dots
from benchmarks.plan import Plan
from benchmarks.processes import private_prefix
from benchmarks.result import Result
from benchmarks.servers import TOKEN
from benchmarks.spread import ratios, spread
from benchmarks.table import Column
from rrpa_sidecar.clock import SystemClock
from rrpa_sidecar.frontend.batched.heads import stream_head
from rrpa_sidecar.frontend.batched.sender import Outgoing, Sender
from rrpa_sidecar.frontend.batched.state import State
from rrpa_sidecar.frontend.batched.step import SHORT_BYTES, Step
from rrpa_sidecar.frontend.batched.wire import one_frame
from rrpa_sidecar.frontend.frames import StreamFrames
from rrpa_sidecar.metrics import Metrics
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.descriptors import use_all
from rrpa_sidecar.shm.directory import open_directory
from rrpa_sidecar.shm.doorbell import Bell
from rrpa_sidecar.shm.reader import LogReader
from rrpa_sidecar.shm.table import Moves, TableReader, TableWriter
from rrpa_sidecar.shm.writer import LogWriter
from rrpa_sidecar.stream.events import Data
from rrpa_sidecar.stream.stream import StreamReader
from rrpa_sidecar.stream.text import whole_characters

RUNS, QUICK_RUNS = 5, 2
STEPS, QUICK_STEPS = 200, 40
STREAMS = 512
STREAM_BYTES = 256 * 1024
CJK = "日本".encode()
WINDOW = 2**31 - 1
TAILS_BYTES = 4096
"""The tail records of a block of slots, which the table's reader reads at once."""
HELD = 128
"""Small writes that a Unix socket surely holds; to empty it now and then costs 1 % of them."""

CALL = [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "x")]

COLUMNS = [
    Column("stage", "stage", number=False),
    Column("µs/token", "product_us"),
    Column("floor", "floor", number=False),
    Column("its µs/token", "floor_us"),
    Column("times the floor", "times"),
]


OPTIONS = [
    click.Option(
        ["--steps"],
        type=click.IntRange(min=1),
        help=f"Steps of each stage in a round.  [default: {STEPS}, with --quick {QUICK_STEPS}]",
    )
]


@dataclass(slots=True)
class Stage:
    """name, floor: what runs; one call of `product` or `bare` is a whole step of 512 tokens.

    finds: it looks for news itself, so there has to be some.
    """

    name: str
    product: Callable[[], object]
    floor: str
    bare: Callable[[], object]
    finds: bool = False
    product_us: list[float] = field(default_factory=list)
    floor_us: list[float] = field(default_factory=list)


class Bench:
    """Logs, a table, readers, a sender and sockets: all that a token meets in one process."""

    def __init__(self, folder: Path) -> None:
        directory = open_directory(str(folder))
        nonce, table_id = secrets.token_bytes(layout.NONCE_BYTES), secrets.token_hex(16)
        self.table_writer = TableWriter.create(directory, table_id, STREAMS, nonce)
        self.table = TableReader.open(directory, table_id, slots=STREAMS, nonce=nonce)
        self.writers, self.readers, self.long_readers, self.logs = [], [], [], []
        for slot in range(STREAMS):
            name = secrets.token_hex(16)
            settings = {"stream_bytes": STREAM_BYTES, "table": self.table_writer, "slot": slot}
            writer = LogWriter.create(directory, name, **settings)  # type: ignore[arg-type]
            writer.write(TOKEN)
            self.writers.append(writer)
            for readers in (self.readers, self.long_readers):
                log = LogReader.open(directory, name, stream_bytes=STREAM_BYTES)
                reader = StreamReader(log)
                reader.poll()
                readers.append(reader)
                self.logs.append(log)
        self.find()
        for moves in self.moved:
            for slot, word in moves.pairs:
                assert self.readers[slot].trust(word)
        self.fds = [log.fd for log in self.logs[::2]]
        self.scratch = [os.dup(writer._lease.fd) for writer in self.writers]
        self.bell = Bell(str(folder / "bell"))
        self.ringer = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.ringer.connect(self.bell.path)
        self.outs = self._outgoing()
        self.parts = self._some_parts()
        self.batch = b"".join(self.parts)

    def close(self) -> None:
        for log in self.logs:
            log.close()
        for fd in self.scratch:
            os.close(fd)
        for writer in self.writers:
            writer.close()
        self.table.close()
        self.table_writer.close()
        self.bell.close()
        self.ringer.close()

    def _outgoing(self) -> list[Outgoing]:
        client = H2Connection()
        client.initiate_connection()
        client.update_settings({4: WINDOW})
        client.increment_flow_control_window(WINDOW - 65535)
        server = State(STREAMS)
        for number in range(STREAMS):
            client.send_headers(2 * number + 1, CALL)
        server.receive_data(client.data_to_send())
        self.sender = Sender(server, lambda out, end: None)
        self.step = Step((), SystemClock())
        counters = Metrics().model("")
        outs = []
        for (stream_id, stream), reader in zip(server.streams.items(), self.readers, strict=True):
            out = Outgoing(stream_id, stream, self.sender)
            out.reader, out.head, out.counters = reader, stream_head, counters
            outs.append(out)
        self.h2 = server
        return outs

    def _some_parts(self) -> list[bytes]:
        parts = []
        for out in self.outs:
            parts += [stream_head(out.stream_id, 1000, len(TOKEN)), TOKEN]
        return parts

    # --- Stages: each is one step -----------------------------------------------------------

    def write(self) -> None:
        for writer in self.writers:
            writer.write(TOKEN)

    def write_bare(self) -> None:
        for fd in self.scratch:
            # Where no reader looks: the last page of the log.
            os.pwrite(fd, TOKEN, STREAM_BYTES - layout.PAGE_BYTES)

    def ring(self) -> None:
        self.ringer.send(b"x")
        self.bell.drain()

    def ring_bare(self) -> None:
        self.ringer.send(b"x")
        self.bell._socket.recv(16)

    def find(self) -> None:
        """The pairs are walked here, so that every stage can; the product walks them once."""
        self.moved = [each._replace(pairs=list(each.pairs)) for each in self.table.poll()]

    def find_bare(self) -> None:
        os.pread(self.table._fd, STREAMS * 8, layout.HEADER_BYTES)
        for at in range(0, STREAMS * layout.TAIL_RECORD_BYTES, TAILS_BYTES):
            os.pread(self.table._fd, TAILS_BYTES, self.table._tails_at + at)

    def read(self) -> None:
        size = layout.TAIL_RECORD_BYTES
        for first, pairs, tails in self.moved:
            for slot, word in pairs:
                at = (slot - first) * size
                self.readers[slot].promised(word, SHORT_BYTES, tails[at : at + size])

    def read_bare(self) -> None:
        size = layout.TAIL_RECORD_BYTES
        for first, pairs, tails in self.moved:
            for slot, _ in pairs:
                at = (slot - first) * size
                tails[at : at + size]

    def read_log(self) -> None:
        for moves in self.moved:
            for slot, word in moves.pairs:
                self.readers[slot].promised(word, SHORT_BYTES)

    def read_log_bare(self) -> None:
        at = self.long_readers[0].offset + layout.HEADER_BYTES
        for fd in self.fds:
            os.pread(fd, len(TOKEN), at)

    def read_long(self) -> None:
        for reader in self.long_readers:
            reader.poll()

    def read_long_bare(self) -> None:
        for fd in self.fds:
            os.pread(fd, 32, layout.CURSOR_OFFSET)
            os.pread(fd, len(TOKEN), layout.HEADER_BYTES)

    def cut(self, token: bytes) -> None:
        for _ in range(STREAMS):
            whole_characters(token, False)

    def copy(self, token: bytes) -> None:
        view = memoryview(token)
        for _ in range(STREAMS):
            bytes(view)

    def pack(self) -> None:
        for out in self.outs:
            stream_head(out.stream_id, 1000, 5)

    def pack_bare(self) -> None:
        view = memoryview(self.parts[0])
        for _ in self.outs:
            bytes(view)

    def pack_long(self) -> None:
        frames = StreamFrames()
        for out in self.outs:
            one_frame(out.stream_id, frames.data(Data(1000, TOKEN)))

    def take_batch(self) -> list[bytes]:
        return self._batch(self.moved)

    def find_batch(self) -> list[bytes]:
        return self._batch(self.table.poll())

    def _batch(self, moved: list[Moves]) -> list[bytes]:
        """Send what has moved the short way, as the broker's scan does, and take the batch."""
        self.sender.begin_step(WINDOW)
        for moves in moved:
            self.step.take(self.outs, moves)
        return self.sender.batch()

    def take_batch_bare(self) -> bytes:
        size, heads, parts = layout.TAIL_RECORD_BYTES, self.parts[::2], []
        for first, pairs, tails in self.moved:
            for slot, _ in pairs:
                at = (slot - first) * size
                parts += (heads[slot], tails[at : at + len(TOKEN)])
        return b"".join(parts)

    def join(self) -> None:
        b"".join(self.parts)

    def join_bare(self) -> None:
        bytes(memoryview(self.batch))


class Pipe:
    """A Unix connection whose other end is emptied between steps."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        ours, self._other = socket.socketpair()
        ours.setblocking(False)
        self._other.setblocking(False)
        self._bare = ours.dup()
        made = loop.run_until_complete(loop.create_connection(asyncio.Protocol, sock=ours))
        self._transport = made[0]

    def send(self, raw: bytes) -> None:
        """What the front end does: the transport's write, and the turn of the loop that it takes.

        uvloop sends at the end of the turn.
        """
        self._transport.write(raw)
        self._turn()

    def send_bare(self, raw: bytes) -> None:
        self._bare.send(raw)

    def send_each(self, parts: list[bytes]) -> None:
        send = self._bare.send
        for at in range(0, len(parts), HELD):
            for part in parts[at : at + HELD]:
                send(part)
            self.empty()

    def empty(self) -> None:
        try:
            while self._other.recv(1 << 20):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        self._transport.close()
        self._turn()
        self._other.close()
        self._bare.close()

    def _turn(self) -> None:
        self._loop.call_soon(self._loop.stop)
        self._loop.run_forever()


@contextmanager
def _bench() -> Iterator[tuple[Bench, Pipe]]:
    use_all()
    folder = Path(tempfile.mkdtemp(prefix=private_prefix(), dir="/dev/shm"))
    loop = uvloop.new_event_loop()
    bench, pipe = Bench(folder), Pipe(loop)
    try:
        yield bench, pipe
    finally:
        pipe.close()
        bench.close()
        loop.close()
        shutil.rmtree(folder)


def _stages(bench: Bench, pipe: Pipe) -> list[Stage]:
    frames = [b"".join(bench.parts[at : at + 2]) for at in range(0, 2 * STREAMS, 2)]

    def whole() -> None:
        bench.bell.drain()
        pipe.send(b"".join(bench.find_batch()))

    def whole_bare() -> None:
        bench.find_bare()
        pipe.send_bare(b"".join(bench.parts))

    ascii_cut, ascii_copy = (lambda f=f: f(TOKEN) for f in (bench.cut, bench.copy))
    cjk_cut, cjk_copy = (lambda f=f: f(CJK) for f in (bench.cut, bench.copy))
    return [
        Stage("engine: write into the log, table", bench.write, "pwrite", bench.write_bare),
        Stage("doorbell, once a step", bench.ring, "send and recv", bench.ring_bare),
        Stage("find who moved in the table, read its tails", bench.find,
              "preads of the table", bench.find_bare, finds=True),
        Stage("take a token from the tails", bench.read, "copy of the tail", bench.read_bare),
        Stage("read a token from its log", bench.read_log, "pread", bench.read_log_bare),
        Stage("read a token, the long way", bench.read_long, "2 preads", bench.read_long_bare),
        Stage("cut characters, ASCII", ascii_cut, "copy of the bytes", ascii_copy),
        Stage("cut characters, 2 of 3 bytes", cjk_cut, "copy of the bytes", cjk_copy),
        Stage("pack a frame's head", bench.pack, "copy of the bytes", bench.pack_bare),
        Stage("pack a frame, the long way", bench.pack_long, "copy of the bytes", bench.pack_bare),
        Stage("batch: take, windows, pack, count", bench.take_batch,
              "copy and join", bench.take_batch_bare),
        Stage("join the batch", bench.join, "copy of the bytes", bench.join_bare),
        Stage("write the batch", lambda: pipe.send(bench.batch),
              "bare write", lambda: pipe.send_bare(bench.batch)),
        Stage("write each frame by itself (not the product)", lambda: pipe.send_each(frames),
              "bare write of all", lambda: pipe.send_bare(bench.batch)),
        Stage("whole: bell, find, batch, join, write", whole,
              "preads, join, bare write", whole_bare, finds=True),
    ]  # fmt: skip


def run(plan: Plan) -> Result:
    """Measure all stages, in turns."""
    steps = plan.extra.get("steps") or (QUICK_STEPS if plan.quick else STEPS)
    load = {
        "tokens in a step": STREAMS,
        "token": f"{len(TOKEN)} bytes of ASCII",
        "steps in a round": steps,
        "rounds": plan.runs,
        "clock": "CPU time of the thread",
        "quick": plan.quick,
    }
    result = Result("micro", machine(), load)
    with _bench() as (bench, pipe):
        stages = _stages(bench, pipe)
        for number in range(plan.runs):
            plan.say(f"round {number + 1} of {plan.runs}")
            for stage in stages:
                for times, run_step in (
                    (stage.product_us, stage.product),
                    (stage.floor_us, stage.bare),
                ):
                    times.append(_us_per_token(bench, pipe, run_step, steps, stage.finds))
    for stage in stages:
        times = ratios(stage.product_us, stage.floor_us)
        result.results.append(
            {
                "stage": stage.name,
                "ours": stage is stages[-1],
                "product_us": spread(stage.product_us),
                "floor": stage.floor,
                "floor_us": spread(stage.floor_us),
                "times": times,
            }
        )
    result.ratios["preads, join and bare write of a step"] = times["median"]
    return result


def _us_per_token(
    bench: Bench, pipe: Pipe, run_step: Callable[[], object], steps: int, finds: bool
) -> float:
    """Return the CPU of a step's token; before each step there is a new token in every log."""
    total_ns = 0
    for _ in range(steps):
        bench.write()
        bench.ringer.send(b"x")
        if not finds:
            bench.find()
        begun_ns = time.thread_time_ns()
        run_step()
        total_ns += time.thread_time_ns() - begun_ns
        pipe.empty()
        settle(bench)
    return total_ns / steps / STREAMS / 1e3


def settle(bench: Bench) -> None:
    """Take what the step has not taken, so that the next finds one new token in each log."""
    bench.bell.drain()
    bench.find()
    for reader in (*bench.readers, *bench.long_readers):
        reader.poll()
    # Windows do not end: nobody gives them back here.
    bench.h2.outbound_flow_control_window = WINDOW
    for out in bench.outs:
        out.stream.outbound_flow_control_window = WINDOW


def draw(document: dict[str, Any], path: Path) -> None:
    """Draw what each stage takes."""
    rows = document["results"]
    shown = [Dot(row["stage"], row["product_us"], ours=True) for row in rows]
    dots(
        path,
        title=f"CPU of each stage of a token's way, in steps of {STREAMS}",
        unit="µs of CPU per token, logarithmic scale",
        shown=shown,
    )
