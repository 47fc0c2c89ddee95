"""Writer and reader in two processes at once: no byte is wrong, missing or early."""

from __future__ import annotations

import os
import random
import select
import signal
import struct
import time
import zlib
from collections.abc import Callable, Iterator

import pytest

from rrpa_sidecar.errors import LogFull
from rrpa_sidecar.shm.directory import PlainDirectory
from rrpa_sidecar.shm.doorbell import Bell, Ringer
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.table import TableReader, TableWriter
from tests.shm.support import exit_of, fork, reader, slots_of, writer

LOG, TABLE, NONCE = "1" * 32, "2" * 32, bytes(16)
BYTES = 32 << 20
HEAD = struct.Struct("<IHI")  # sequence number, length, checksum
SECONDS = 2.0


def records(rng: random.Random) -> Iterator[bytes]:
    sequence = 0
    while True:
        payload = rng.randbytes(rng.randrange(40))
        yield HEAD.pack(sequence, len(payload), zlib.crc32(payload)) + payload
        sequence += 1


def tokens(rng: random.Random) -> Iterator[bytes]:
    """Records cut anywhere."""
    for record in records(rng):
        cut = rng.randrange(len(record) + 1)
        yield record[:cut]
        yield record[cut:]


class Checker:
    """Takes the stream's bytes and checks each record."""

    def __init__(self) -> None:
        self.pending = b""
        self.checked = 0

    def take(self, data: bytes) -> None:
        self.pending += data
        at = 0
        while at + HEAD.size <= len(self.pending):
            sequence, size, crc = HEAD.unpack_from(self.pending, at)
            stop = at + HEAD.size + size
            if stop > len(self.pending):
                break
            assert sequence == self.checked
            assert zlib.crc32(self.pending[at + HEAD.size : stop]) == crc
            self.checked += 1
            at = stop
        self.pending = self.pending[at:]


@pytest.fixture
def engine(memory: PlainDirectory) -> Iterator[Callable[[int, str], int]]:
    """Starts an engine that writes for SECONDS, with a pause now and then, and ends."""
    pids: list[int] = []

    def start(seed: int, bell: str) -> int:
        def run() -> None:
            rng = random.Random(seed)
            table = TableWriter.create(memory, TABLE, 4, NONCE)
            made = writer(memory, LOG, stream_bytes=BYTES, table=table, slot=3)
            ringer = Ringer(bell)
            until = time.monotonic() + SECONDS
            for count, token in enumerate(tokens(rng)):
                try:
                    made.write(token)
                except LogFull:
                    break
                ringer.ring()
                if count % 500 == 0:
                    time.sleep(0.002)
                    if time.monotonic() > until:
                        break
            made.finish(End(reason=1, completion_tokens=made.tokens))
            ringer.ring()

        pids.append(fork(run))
        return pids[-1]

    yield start
    for name in memory.names():
        memory.unlink(name)


def test_two_processes_agree_on_every_record(
    memory: PlainDirectory, engine: Callable[[int, str], int], seeded: random.Random
) -> None:
    bell = Bell(f"{memory.path}/bell")
    pid = engine(seeded.getrandbits(32), bell.path)
    assert select.select([bell], [], [], 10)[0]
    read = reader(memory, LOG, BYTES)
    table = TableReader.open(memory, TABLE, slots=4, nonce=NONCE)
    checker, position, end, polls = Checker(), 0, None, 0
    while end is None:
        # Half of the polls follow the bell and the table, half race with the writer.
        polls += 1
        if polls % 2:
            assert select.select([bell], [], [], 10)[0], "the bell was lost"
            bell.drain()
            assert slots_of(table.poll()) in ([3], [])
        committed, end = read.progress()
        assert committed >= position
        while position < committed:
            data = read.read(position, 65536)
            position += len(data)
            checker.take(data)
    assert exit_of(pid) == 0
    assert slots_of(table.poll()) in ([3], [])
    assert table.word(3) == (position, True)
    assert not read.writer_gone()
    print(f"{checker.checked} records, {position} bytes, {polls} polls")
    assert checker.checked > 1000
    assert len(checker.pending) < HEAD.size + 40
    bell.close()
    read.close()
    table.close()


def test_a_writer_killed_at_any_moment_leaves_whole_tokens(
    memory: PlainDirectory, engine: Callable[[int, str], int], seeded: random.Random
) -> None:
    for _ in range(5):
        seed = seeded.getrandbits(32)
        bell = Bell(f"{memory.path}/bell")
        pid = engine(seed, bell.path)
        assert select.select([bell], [], [], 10)[0]
        read = reader(memory, LOG, BYTES)
        while read.progress()[0] < seeded.randrange(60_000):
            select.select([bell], [], [], 0.01)
            bell.drain()
        os.kill(pid, signal.SIGKILL)
        exit_of(pid)
        assert read.writer_gone()
        committed, end = read.progress()
        assert end is None
        expected, ends = b"", {0}
        for token in tokens(random.Random(seed)):
            if len(expected) >= committed:
                break
            expected += token
            ends.add(len(expected))
        assert committed in ends
        assert read.read(0, committed) == expected[:committed]
        read.close()
        bell.close()
        for name in memory.names():
            memory.unlink(name)
