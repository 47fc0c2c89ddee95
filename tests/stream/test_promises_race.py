"""Streams read by table, tail and log while another process writes them, at full speed."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rrpa_sidecar.shm.directory import PlainDirectory
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.layout import TAIL_RECORD_BYTES
from rrpa_sidecar.shm.table import Moves, TableReader, TableWriter
from rrpa_sidecar.stream.events import Data, Finished
from rrpa_sidecar.stream.progress import Progress
from rrpa_sidecar.stream.stream import StreamReader
from tests.shm.support import exit_of, fork, reader, writer

STREAMS = 6
TOKENS = 4_000
TABLE, NONCE = "7" * 32, bytes(16)
STREAM_BYTES = 1 << 20


def name(slot: int) -> str:
    return f"{slot:032x}"


def tokens(seed: int, slot: int) -> Iterator[bytes]:
    """Whole and cut characters, nonsense, and now and then more than a tail holds."""
    rng = random.Random(f"{seed} {slot}")
    for _ in range(TOKENS):
        kind = rng.random()
        if kind < 0.8:
            yield rng.randbytes(rng.randrange(1, 8)).hex()[: rng.randrange(1, 8)].encode()
        elif kind < 0.95:
            yield "€uro😀".encode()[rng.randrange(4) :][: rng.randrange(1, 6)]
        else:
            yield rng.randbytes(rng.randrange(1, 60))


def write_all(directory: PlainDirectory, seed: int) -> None:
    table = TableWriter.create(directory, TABLE, STREAMS, NONCE)
    logs = [
        writer(directory, name(slot), stream_bytes=STREAM_BYTES, table=table, slot=slot)
        for slot in range(STREAMS)
    ]
    for step in zip(*(tokens(seed, slot) for slot in range(STREAMS)), strict=True):
        for log, token in zip(logs, step, strict=True):
            log.write(token)
    for log in logs:
        log.finish(End(reason=1))


@pytest.fixture
def memory(request: pytest.FixtureRequest) -> Iterator[PlainDirectory]:
    path = Path(f"/dev/shm/rrpa-test-{os.getpid()}-{random.getrandbits(32):x}")
    path.mkdir()
    directory = PlainDirectory(str(path))
    yield directory
    for each in directory.names():
        directory.unlink(each)
    path.rmdir()


def test_whatever_way_a_token_takes_every_stream_is_one_decode_of_what_was_written(
    memory: PlainDirectory, seeded: random.Random
) -> None:
    seed = seeded.getrandbits(32)
    pid = fork(lambda: write_all(memory, seed))
    wait_until_all_are_there(memory)
    table = TableReader.open(memory, TABLE, slots=STREAMS, nonce=NONCE)
    logs = [reader(memory, name(slot), STREAM_BYTES) for slot in range(STREAMS)]
    readers = [StreamReader(Progress(log)) for log in logs]
    got = [b""] * STREAMS
    by_tail = by_log = 0
    over: set[int] = set()

    def drain(slot: int) -> int:
        events = 0
        while isinstance(event := readers[slot].poll(), Data):
            assert event.offset == len(got[slot])
            got[slot] += event.data
            events += 1
        if isinstance(event, Finished):
            over.add(slot)
        return events

    while len(over) < STREAMS:
        moved = table.poll()
        for slot, word, tail in each(moved):
            data = b"" if word & 1 else readers[slot].promised(word, 4096, tail)
            got[slot] += data
            by_tail += bool(data)
            by_log += 0 if data else drain(slot)
            readers[slot].trust(word)
        if not moved and seeded.random() < 0.1:
            for slot in range(STREAMS):
                drain(slot)
    assert exit_of(pid) == 0
    for slot in range(STREAMS):
        written = b"".join(tokens(seed, slot))
        assert got[slot] == written.decode("utf-8", "replace").encode(), f"slot {slot}"
    assert by_tail > 0
    assert by_log > 0
    for log in logs:
        log.close()
    table.close()


def each(blocks: list[Moves]) -> Iterator[tuple[int, int, bytes]]:
    for first, pairs, tails in blocks:
        for slot, word in pairs:
            at = (slot - first) * TAIL_RECORD_BYTES
            yield slot, word, tails[at : at + TAIL_RECORD_BYTES]


def wait_until_all_are_there(directory: PlainDirectory) -> None:
    until = time.monotonic() + 10
    while len([each for each in directory.names() if "tmp" not in each]) <= STREAMS:
        assert time.monotonic() < until, directory.names()
        time.sleep(0.001)
