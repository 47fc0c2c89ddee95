"""Every stream with bytes and window has its turn: on one connection, against the real daemon.

What a token waits for is counted in bytes of other answers that the caller was given between the
token's commit and its arrival, and not in seconds: a busy machine makes these longer.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rrpa_sidecar.frontend.batched.connection import HIGH_WATER_BYTES
from rrpa_sidecar.frontend.batched.sender import BATCH_BYTES
from rrpa_sidecar.frontend.methods import CREATE_STREAM
from rrpa_sidecar.pb import rrpa_pb2 as pb
from tests.harness.paced_reader import STAMP_DIGITS, STAMPED_TEXT
from tests.harness.processes import ReplayEngine, Stack, eventually
from tests.harness.raw_h2 import DATA, END_STREAM, HEADERS, RST_STREAM, SETTINGS, Connection

MIB = 1024 * 1024
BULK, BULK_TOKENS = 8, 128
WORDS = "Wörter und 漢字 🚂 ".encode() * 2500
BULK_BYTES = BULK_TOKENS * len(WORDS)
PACED, PACED_TOKENS, PACE = 8, 10_000, 100
LARGE_WINDOW = 2**30
WINDOW_UPDATE = 8
STANDING_BYTES = HIGH_WATER_BYTES + BATCH_BYTES + 212_992 + 65_536
"""What may have left for the caller already: in the sidecar, in the kernel's buffer of a Unix
socket, in the caller's own."""


@dataclass
class Reading:
    """What one caller got: the streams of DATA frames in their order, and what tokens met."""

    order: list[int] = field(default_factory=list)
    ended: int = 0
    """How many DATA frames had come when the first of the bulk had ended."""
    resets: int = 0
    bytes: int = 0
    ahead: list[int] = field(default_factory=list)
    """Bytes that came between the commit of a paced token and the token."""


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    text, words = tmp_path / "text", tmp_path / "words"
    text.write_bytes(STAMPED_TEXT)
    words.write_bytes(WORDS)
    sizes = {"stream_bytes": 10 * MIB, "shm_bytes": (BULK + PACED) * 10 * MIB}
    stamped: dict[str, Any] = {
        "model": "stamped",
        "stamp": True,
        "text_file": text,
        "tokens_per_second": PACE,
    }
    burst = {"capacity": BULK, "model": "burst", "text_file": words, "bytes_per_token": len(WORDS)}
    with (
        Stack(daemon=sizes, engine=burst) as stack,
        ReplayEngine(stack.daemon, **stamped),
    ):
        yield stack


def with_large_windows(address: str) -> Connection:
    made = Connection(address)
    made.send(SETTINGS, struct.pack(">HI", 4, LARGE_WINDOW))
    made.send(WINDOW_UPDATE, struct.pack(">I", LARGE_WINDOW))
    return made


def ask(caller: Connection, model: str, tokens: int) -> int:
    request = pb.CreateStreamRequest(model=model, prompt="x", max_tokens=tokens)
    return caller.call(CREATE_STREAM, request.SerializeToString())


def read(caller: Connection, bulk: list[int], paced: list[int]) -> Reading:
    """Read until the bulk is over. Each moment is remembered with the bytes that had come."""
    found, past = Reading(), [(time.monotonic_ns(), 0)]
    begun_ns, left = past[0][0], {*bulk}
    while left:
        frame = caller.frame(20)
        assert frame is not None
        now_ns = time.monotonic_ns()
        if frame.stream in left and (frame.kind == RST_STREAM or frame.flags & END_STREAM):
            assert frame.kind in (HEADERS, RST_STREAM)
            found.resets += frame.kind == RST_STREAM
            found.ended = found.ended or len(found.order)
            left.remove(frame.stream)
        if frame.kind != DATA:
            continue
        if frame.stream in paced:
            at = frame.payload.find(b" word") - STAMP_DIGITS
            stamp_ns = int(frame.payload[at : at + STAMP_DIGITS]) if at >= 0 else 0
            if stamp_ns > begun_ns:
                since = next(count for at_ns, count in reversed(past) if at_ns <= stamp_ns)
                found.ahead.append(found.bytes - since)
        found.order.append(frame.stream)
        found.bytes += len(frame.payload)
        past.append((now_ns, found.bytes))
    return found


@pytest.mark.timeout(60)
def test_backlogs_take_turns_and_paced_tokens_pass_them(stack: Stack) -> None:
    with with_large_windows(stack.daemon.envoy_socket) as caller:
        paced = [ask(caller, "stamped", PACED_TOKENS) for _ in range(PACED)]
        bulk = [ask(caller, "burst", BULK_TOKENS) for _ in range(BULK)]
        total = BULK * BULK_BYTES
        eventually(lambda: written_bytes(stack) >= total, 20, "the engine has written all")
        found = read(caller, bulk, paced)
    assert found.resets == 0
    assert found.bytes > total

    # Among the bulk ones: always the same order, from where all of them have begun to where the
    # first has said nearly all.
    turns = [stream for stream in found.order[: found.ended] if stream in bulk]
    turns = turns[STANDING_BYTES * 2 // 16_384 : -4 * BULK]
    assert len(turns) > 20 * BULK
    assert turns[BULK:] == turns[:-BULK]
    assert Counter(turns[:BULK]) == Counter(bulk)

    # A token that had to wait until the backlogs are gone would have tens of megabytes before it.
    # The engine may be stopped between a token's stamp and its commit: hence the median.
    ahead = sorted(found.ahead)
    assert len(ahead) >= PACED
    assert ahead[len(ahead) // 2] <= STANDING_BYTES, ahead
    assert ahead[-1] < total / 4, ahead


def written_bytes(stack: Stack) -> int:
    """Return the memory that all logs have."""
    return sum(
        (stack.daemon.shm_dir / name).stat().st_blocks * 512 for name in stack.daemon.segments()
    )
