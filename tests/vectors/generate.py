"""Makes the test vectors of the shared-memory format: python -m tests.vectors.generate [DIR]

A vector NAME.bin holds the parts of a segment that are not holes, joined: the first 4 KiB, then
what is at 64 KiB and after. vectors.json says what wrote it and what a reader must see.
"""

from __future__ import annotations

import json
import struct
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import PlainDirectory
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.table import TableWriter
from rrpa_sidecar.shm.writer import LogWriter

HERE = Path(__file__).parent
NOW_NS = 1_700_000_000_123_456_789
STREAM_BYTES = layout.MIN_STREAM_BYTES
TABLE_ID = "7ab1e" + "0" * 27
NONCE = bytes(range(16))
SLOTS = 12

Patch = tuple[int, bytes]


class FixedClock:
    def now_ns(self) -> int:
        return NOW_NS


@dataclass(frozen=True)
class Vector:
    """A log. `patches` are made by hand after the writer, and `error` is what they cause."""

    name: str
    about: str
    tokens: tuple[bytes, ...] = ()
    end: End | None = None
    patches: tuple[Patch, ...] = ()
    error: str | None = None
    committed: int | None = field(default=None)

    @property
    def stream_id(self) -> str:
        return self.name.encode().hex()[:32].ljust(32, "0")

    @property
    def committed_bytes(self) -> int:
        return sum(map(len, self.tokens)) if self.committed is None else self.committed


def _u64(offset: int, value: int) -> Patch:
    return offset, struct.pack("<Q", value)


_NOT = layout.U64_MAX
_DONE = End(reason=1, prompt_tokens=5, completion_tokens=2)

VECTORS = (
    Vector("born", "a log without a token"),
    Vector("open", "three tokens, no end: the writer was lost", (b"one", b" two", b" three")),
    Vector(
        "finished",
        "an answer that ended at a stop sequence",
        (b"Hello", b", ", b"world"),
        End(0, 3, b"\n\n", 17, 4, 8, ""),
    ),
    Vector("no_token", "an answer with no token", (), End(reason=2)),
    Vector("empty_tokens", "zero-length tokens between others", (b"", b"a", b"", b"b", b""), _DONE),
    Vector("nul_bytes", "NUL bytes are bytes", (b"\0", b"a\0b", b"\0\0"), _DONE),
    Vector(
        "cut_characters",
        "2-, 3- and 4-byte characters, each byte a token",
        tuple(bytes([b]) for b in "é€😀".encode()),
        _DONE,
    ),
    Vector(
        "invalid_utf8", "bytes that never become characters", (b"\xff\xc0", b"\xed\xa0\x80"), _DONE
    ),
    Vector("empty_stop", "a stop sequence that is present and empty", (b"x",), End(0, 3, b"")),
    Vector(
        "failed",
        "the engine's own status, after some bytes",
        (b"partial ",),
        End(code=13, reason=5, text="CUDA error: Gerät verloren ✗"),
    ),
    Vector(
        "longest_end",
        "stop and text as long as they can be, all numbers at their largest",
        (b"x",),
        End(16, layout.U32_MAX, b"s" * 2048, *([layout.U32_MAX] * 3), "é" * 512),
    ),
    Vector(
        "dead_after_7",
        "the writer died between complement and cursor: the cursor counts",
        (b"abc", b"def"),
        None,
        (_u64(128, 3),),
        committed=3,
    ),
    Vector("bad_magic", "", (b"x",), None, ((0, b"RRPALOX"),), "begins with"),
    Vector("bad_version", "", (b"x",), None, ((8, b"\2"),), "version 2"),
    Vector("bad_birth", "", (b"x",), None, ((45, b"\7"),), "header checksum"),
    Vector(
        "cursor_outside",
        "",
        (b"x",),
        None,
        (_u64(128, 65537), _u64(136, _NOT ^ 65537)),
        "not between",
    ),
    Vector("twin_too_small", "", (b"xyz",), None, (_u64(136, _NOT ^ 2),), "disagree"),
    Vector("twin_outside", "", (b"xyz",), None, (_u64(136, _NOT ^ 65537),), "disagree"),
    Vector("bad_state", "", (b"x",), None, (_u64(144, 2),), "state 2"),
    Vector("end_checksum", "", (b"x",), _DONE, ((2560, b"?"),), "end checksum"),
    Vector(
        "end_length",
        "",
        (b"abc",),
        _DONE,
        (_u64(128, 2), _u64(136, _NOT ^ 2)),
        "must agree",
    ),
    Vector("end_twin", "", (b"abc",), _DONE, (_u64(136, _NOT ^ 4),), "must agree"),
)


def write_vector(vector: Vector, directory: PlainDirectory) -> Path:
    """Write the whole sparse segment into `directory`; return its path."""
    writer = LogWriter.create(
        directory, vector.stream_id, stream_bytes=STREAM_BYTES, clock=FixedClock()
    )
    for token in vector.tokens:
        writer.write(token)
    if vector.end is not None:
        writer.finish(vector.end)
    writer.close()
    path = Path(directory.path, layout.log_name(vector.stream_id))
    with path.open("r+b") as file:
        for offset, data in vector.patches:
            file.seek(offset)
            file.write(data)
    return path


WORDS = {
    0: (1, 5, False, bytes(23) + b"hello"),
    3: (2, 0, True, b""),
    7: (1, (1 << 33) + 1, False, bytes(range(28))),
    11: (layout.WORD_TURNS - 1, (1 << 47) - 1, True, b""),
}
"""Slot → (turn, committed_bytes, ended, tail or nothing)."""


def write_table(directory: PlainDirectory) -> Path:
    """Write the table vector; return its path."""
    table = TableWriter.create(directory, TABLE_ID, SLOTS, NONCE, clock=FixedClock())
    for slot, (turn, committed_bytes, ended, tail) in WORDS.items():
        for _ in range(turn):
            table.begin(slot)
        if tail:
            table.move(slot, committed_bytes, tail)
        else:
            table.set(slot, committed_bytes, ended)
    table.close()
    return Path(directory.path, layout.table_name(TABLE_ID))


def compact(path: Path) -> bytes:
    """Return the parts of a segment that are not holes, joined."""
    raw = path.read_bytes()
    return raw[: layout.HEADER_USED_BYTES] + raw[layout.HEADER_BYTES :].rstrip(b"\0")


def expand(compacted: bytes, size: int) -> bytes:
    """Undo `compact`."""
    used = layout.HEADER_USED_BYTES
    head = compacted[:used].ljust(layout.HEADER_BYTES, b"\0")
    return (head + compacted[used:]).ljust(size, b"\0")


def record(vector: Vector) -> dict[str, object]:
    """Return what vectors.json says about `vector`."""
    end = vector.end
    return {
        "name": vector.name,
        "about": vector.about or f"a reader must refuse it: {vector.error}",
        "stream_id": vector.stream_id,
        "tokens_hex": [token.hex() for token in vector.tokens],
        "end": end
        and {
            "code": end.code,
            "reason": end.reason,
            "stop_sequence_hex": None if end.stop_sequence is None else end.stop_sequence.hex(),
            "prompt_tokens": end.prompt_tokens,
            "completion_tokens": end.completion_tokens,
            "cached_tokens": end.cached_tokens,
            "text": end.text,
        },
        "patches": [[offset, data.hex()] for offset, data in vector.patches],
        "committed_bytes": None if vector.error else vector.committed_bytes,
        "error_says": vector.error,
    }


def generate(into: Path) -> None:
    """Write all vectors and vectors.json into `into`."""
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rrpa-vectors-") as name:
        directory = PlainDirectory(name)
        made: list[tuple[str, Callable[[PlainDirectory], Path]]] = [("table", write_table)]
        made += [(v.name, lambda d, v=v: write_vector(v, d)) for v in VECTORS]
        for stem, write in made:
            (into / f"{stem}.bin").write_bytes(compact(write(directory)))
    index = {
        "version": layout.VERSION,
        "file_bytes": STREAM_BYTES,
        "clock_ns": NOW_NS,
        "table": {
            "table_id": TABLE_ID,
            "slots": SLOTS,
            "nonce_hex": NONCE.hex(),
            "file_bytes": layout.table_bytes(SLOTS),
            "words": {str(slot): [*word, tail.hex()] for slot, (*word, tail) in WORDS.items()},
        },
        "logs": [record(vector) for vector in VECTORS],
    }
    (into / "vectors.json").write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
