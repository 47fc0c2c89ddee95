"""All that a token meets in one process: logs, a table, readers, a step, a sender and sockets.

The product's own parts, over real files in /dev/shm, put together as the daemon does but without
a broker: `micro` runs them one by one, each beside its floor.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop
from h2.connection import H2Connection
from h2.settings import SettingCodes

from benchmarks.processes import private_prefix
from benchmarks.servers import TOKEN
from rrpa_sidecar.clock import SystemClock
from rrpa_sidecar.frontend.batched.heads import stream_head
from rrpa_sidecar.frontend.batched.outgoing import Outgoing
from rrpa_sidecar.frontend.batched.sender import BATCH_BYTES, Sender
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
from rrpa_sidecar.stream.progress import Progress
from rrpa_sidecar.stream.stream import StreamReader
from rrpa_sidecar.stream.text import whole_characters

STREAMS = 512
STREAM_BYTES = 256 * 1024
OFFSET = 1000
"""Of the answer: two bytes as a varint, as most of a chat's are."""
WINDOW_BYTES = 2**31 - 1
HELD = 128
"""Small writes that a Unix socket surely holds; to empty it now and then costs 1 % of them."""

CALL = [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "x")]


class Parts:
    """Logs, a table, readers, a step and its sender; each method is one step of 512 tokens."""

    def __init__(self, folder: Path) -> None:
        directory = open_directory(str(folder))
        nonce, table_id = secrets.token_bytes(layout.NONCE_BYTES), secrets.token_hex(16)
        self.table_writer = TableWriter.create(directory, table_id, STREAMS, nonce)
        self.table = TableReader.open(directory, table_id, slots=STREAMS, nonce=nonce)
        self.writers: list[LogWriter] = []
        self.logs: list[LogReader] = []
        self.readers: list[StreamReader] = []
        self.long_readers: list[StreamReader] = []
        """Of the same logs; they are always polled."""
        for slot in range(STREAMS):
            name = secrets.token_hex(16)
            writer = LogWriter.create(
                directory, name, stream_bytes=STREAM_BYTES, table=self.table_writer, slot=slot
            )
            writer.write(TOKEN)
            self.writers.append(writer)
            for readers in (self.readers, self.long_readers):
                log = LogReader.open(directory, name, stream_bytes=STREAM_BYTES)
                reader = StreamReader(Progress(log))
                reader.poll()
                readers.append(reader)
                self.logs.append(log)
        self.moved: list[Moves] = self.table.poll()
        for moves in self.moved:
            for slot, word in moves.pairs:
                assert self.readers[slot].trust(word)
        self.fds = [log.fd for log in self.logs[::2]]
        self.scratch = [os.dup(writer._lease.fd) for writer in self.writers]
        self.bell = Bell(str(folder / "bell"))
        self.ringer = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.ringer.connect(self.bell.path)
        self.batch = b""
        """The last step's, joined."""
        self.outs = self._outgoing()
        self.heads_and_tokens = self._heads_and_tokens()
        self.full_batch = b"".join(self.heads_and_tokens)

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
        client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: WINDOW_BYTES})
        client.increment_flow_control_window(WINDOW_BYTES - 65535)
        self.h2 = State(STREAMS)
        for number in range(STREAMS):
            client.send_headers(2 * number + 1, CALL)
        self.h2.receive_data(client.data_to_send())
        self.sender = Sender(self.h2, lambda out, end: None)
        self.step = Step([self], SystemClock())
        counters = Metrics().model("")
        outs = []
        for (stream_id, stream), reader in zip(self.h2.streams.items(), self.readers, strict=True):
            out = Outgoing(stream_id, stream, self.sender)
            out.reader, out.head, out.counters = reader, stream_head, counters
            outs.append(out)
        return outs

    def _heads_and_tokens(self) -> list[bytes]:
        parts = []
        for out in self.outs:
            parts += [stream_head(out.stream_id, OFFSET, len(TOKEN)), TOKEN]
        return parts

    # --- What `Step` asks of a connection ---------------------------------------------------

    def begin_step(self) -> None:
        self.sender.begin_step(BATCH_BYTES)

    def end_step(self) -> None:
        self.batch = b"".join(self.sender.batch())

    # --- Stages -----------------------------------------------------------------------------

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
        self.moved = self.table.poll()

    def find_bare(self) -> None:
        os.pread(self.table._fd, STREAMS * 8, layout.HEADER_BYTES)
        os.pread(self.table._fd, STREAMS * layout.TAIL_RECORD_BYTES, layout.tails_offset(STREAMS))

    def read_tails(self) -> None:
        record = layout.TAIL_RECORD_BYTES
        for first, pairs, tails in self.moved:
            for slot, word in pairs:
                at = (slot - first) * record
                self.readers[slot].promised(word, SHORT_BYTES, tails[at : at + record])

    def read_short(self) -> None:
        for moves in self.moved:
            for slot, word in moves.pairs:
                self.readers[slot].promised(word, SHORT_BYTES)

    def read_short_bare(self) -> None:
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
            stream_head(out.stream_id, OFFSET, len(TOKEN))

    def pack_long(self) -> None:
        frames = StreamFrames()
        for out in self.outs:
            one_frame(out.stream_id, frames.data(Data(OFFSET, TOKEN)))

    def take(self) -> None:
        """Take what has moved, as the broker's scan has it done, and join it."""
        self.step.begin_step()
        for moves in self.moved:
            left = self.step.take(self.outs, moves)  # type: ignore[arg-type]
            assert not left, "every answer has its place, so the step takes all"
        self.step.end_step()

    def take_bare(self) -> None:
        found = []
        record, size = layout.TAIL_RECORD_BYTES, len(TOKEN)
        for moves in self.moved:
            for slot, _ in moves.pairs:
                end = (slot - moves.first) * record + layout.TAIL_BYTES
                found.append(moves.tails[end - size : end])
        self.batch = b"".join(found)

    def join(self) -> None:
        b"".join(self.heads_and_tokens)

    def join_bare(self) -> None:
        bytes(memoryview(self.full_batch))

    def settle(self) -> None:
        """Take what a step has not taken, so that the next finds one new token in each log."""
        self.bell.drain()
        self.find()
        for reader in (*self.readers, *self.long_readers):
            reader.poll()
        # Windows do not end: nobody gives them back here.
        self.h2.outbound_flow_control_window = WINDOW_BYTES
        for out in self.outs:
            out.stream.outbound_flow_control_window = WINDOW_BYTES


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
        """Do what the front end does: the transport's write, and the loop's turn that sends it."""
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
def token_path() -> Iterator[tuple[Parts, Pipe]]:
    """Give the parts, in a directory of /dev/shm that is removed, and a pipe to send on."""
    use_all()
    folder = Path(tempfile.mkdtemp(prefix=private_prefix(), dir="/dev/shm"))
    loop = uvloop.new_event_loop()
    parts, pipe = Parts(folder), Pipe(loop)
    try:
        yield parts, pipe
    finally:
        pipe.close()
        parts.close()
        loop.close()
        shutil.rmtree(folder)
