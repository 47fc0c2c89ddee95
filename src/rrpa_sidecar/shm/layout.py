"""Where every byte of a segment is: the constants of shm/FORMAT.md, and nothing that acts.

All integers are little-endian. The tables of FORMAT.md are generated from `LOG_FIELDS` and
`TABLE_FIELDS` (`python -m rrpa_sidecar.shm.format_page --write`), so the page cannot drift.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import Final

from rrpa_sidecar.errors import StreamMisuse

VERSION: Final = 1
PAGE_BYTES: Final = 64 * 1024
"""Unit of every size, and length of the header: a multiple of each Linux page size."""
HEADER_BYTES: Final = PAGE_BYTES
HEADER_USED_BYTES: Final = 4096
"""Part of the header that is ever written; the rest stays a hole and costs no memory."""
DEFAULT_STREAM_BYTES: Final = 16 * 1024 * 1024
MIN_STREAM_BYTES: Final = 2 * PAGE_BYTES
MAX_STREAM_BYTES: Final = 1 << 40
MAX_SLOTS: Final = 65_536
FILE_MODE: Final = 0o640

LOG_MAGIC: Final = b"RRPALOG\0"
TABLE_MAGIC: Final = b"RRPATAB\0"

STATE_OPEN: Final = 0
STATE_FINAL: Final = 1
FLAG_STOP_SEQUENCE: Final = 1
WORD_TURN_SHIFT: Final = 48
WORD_TURNS: Final = 1 << 16
WORD_COMMITTED_MASK: Final = (1 << 47) - 1
WORD_TURN_MASK: Final = (WORD_TURNS - 1) << WORD_TURN_SHIFT
TAIL_BYTES: Final = 28
"""Last bytes of a log that its table repeats."""
TAIL_RECORD_BYTES: Final = TAIL_BYTES + 4
TAIL_RESIDUE: Final = 0x2144DF1C
"""CRC-32 of anything that ends with its own CRC-32, lowest byte first, whatever it began with."""
U32_MAX: Final = (1 << 32) - 1
U64_MAX: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a header.

    kind: u32, u64, or bytes[n].
    when: the numbered steps of FORMAT.md that store it; "birth" is step 3.
    """

    name: str
    offset: int
    kind: str
    when: str
    meaning: str

    @property
    def size(self) -> int:
        return {"u32": 4, "u64": 8}.get(self.kind) or int(self.kind[6:-1])


LOG_FIELDS: Final = (
    Field("magic", 0, "bytes[8]", "birth", "`RRPALOG` and a NUL"),
    Field("version", 8, "u32", "birth", "1"),
    Field("header_bytes", 12, "u32", "birth", "65536: where the data begins"),
    Field("file_bytes", 16, "u64", "birth", "size of the file, header included"),
    Field("stream_id", 24, "bytes[16]", "birth", "the id; its 32 hex digits are in the name"),
    Field("created_ns", 40, "u64", "birth", "CLOCK_MONOTONIC at birth; for people"),
    Field("reserved_birth", 48, "bytes[12]", "birth", "zero"),
    Field("birth_crc32", 60, "u32", "birth", "CRC-32 (IEEE, as zlib) of bytes 0 to 59"),
    Field("cursor", 128, "u64", "birth, 8", "committed bytes"),
    Field("cursor_complement", 136, "u64", "birth, 7", "bitwise NOT of the cursor"),
    Field("state", 144, "u64", "13", "0 open, 1 final"),
    Field("first_commit_ns", 152, "u64", "5", "CLOCK_MONOTONIC at the first byte; else 0"),
    Field("tokens", 160, "u64", "9", "tokens written, empty ones included; for people"),
    Field("final_bytes", 256, "u64", "12", "committed bytes at the end; equals the cursor"),
    Field("code", 264, "u32", "12", "gRPC status code, 0 to 16; 0: the stream did not fail"),
    Field("reason", 268, "u32", "12", "number of rrpa.v1.FinishReason"),
    Field("prompt_tokens", 272, "u32", "12", "tokens of the prompt"),
    Field("completion_tokens", 276, "u32", "12", "tokens generated"),
    Field("cached_tokens", 280, "u32", "12", "prompt tokens that came from a cache"),
    Field("end_flags", 284, "u32", "12", "bit 0: a stop sequence matched; other bits zero"),
    Field("stop_sequence_bytes", 288, "u32", "12", "used length of stop_sequence"),
    Field("text_bytes", 292, "u32", "12", "used length of text"),
    Field("end_crc32", 296, "u32", "12", "CRC-32 of bytes 256 to 295 and 512 to 3583"),
    Field("stop_sequence", 512, "bytes[2048]", "12", "UTF-8 of the matched stop, then zeros"),
    Field("text", 2560, "bytes[1024]", "12", "UTF-8 for the client, then zeros"),
)  # fmt: skip

TABLE_FIELDS: Final = (
    Field("magic", 0, "bytes[8]", "birth", "`RRPATAB` and a NUL"),
    Field("version", 8, "u32", "birth", "1"),
    Field("header_bytes", 12, "u32", "birth", "65536: where the words begin"),
    Field("file_bytes", 16, "u64", "birth", "size of the file, header included"),
    Field("table_id", 24, "bytes[16]", "birth", "the id; its 32 hex digits are in the name"),
    Field("created_ns", 40, "u64", "birth", "CLOCK_MONOTONIC at birth; for people"),
    Field("slots", 48, "u32", "birth", "number of words, 1 to 65536"),
    Field("reserved_birth", 52, "bytes[8]", "birth", "zero"),
    Field("birth_crc32", 60, "u32", "birth", "CRC-32 of bytes 0 to 59"),
    Field("nonce", 64, "bytes[16]", "birth", "random; the engine says it in Hello too"),
)

# Offsets by name, for the modules that act. A test compares them with the tables above.
BIRTH_CRC_OFFSET: Final = 60
CURSOR_OFFSET: Final = 128
COMPLEMENT_OFFSET: Final = 136
STATE_OFFSET: Final = 144
FIRST_COMMIT_OFFSET: Final = 152
TOKENS_OFFSET: Final = 160
END_OFFSET: Final = 256
END_CRC_OFFSET: Final = 296
STOP_OFFSET: Final = 512
STOP_LIMIT_BYTES: Final = 2048
TEXT_OFFSET: Final = 2560
TEXT_LIMIT_BYTES: Final = 1024
END_STOP_OFFSET: Final = TEXT_OFFSET + TEXT_LIMIT_BYTES
NONCE_OFFSET: Final = 64
NONCE_BYTES: Final = 16

_ID = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(
    r"rrpa_(?:tmp_(?P<tmp>[0-9a-f]{32})_[0-9]{1,10}|(?:table_)?(?P<id>[0-9a-f]{32}))"
)


def is_id(text: str) -> bool:
    """Whether `text` is 32 lower-case hex digits."""
    return _ID.fullmatch(text) is not None


def is_name(name: str) -> bool:
    """Whether `name` is a log, a table, or one of them being born. Never true for a path."""
    return _NAME.fullmatch(name) is not None


def is_temporary(name: str) -> bool:
    return name.startswith("rrpa_tmp_")


def kind_of(name: str) -> str:
    """Return what a valid `name` names: "log", "table" or "temporary"."""
    if is_temporary(name):
        return "temporary"
    return "table" if name.startswith("rrpa_table_") else "log"


def magics_of(name: str) -> tuple[bytes, ...]:
    """Return what the file `name` may begin with."""
    if is_temporary(name):
        return LOG_MAGIC, TABLE_MAGIC
    return (TABLE_MAGIC,) if kind_of(name) == "table" else (LOG_MAGIC,)


def id_of(name: str) -> str:
    """Return the 32 hex digits in a valid `name`."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise StreamMisuse(f"{name[:64]!r} is not the name of a segment")
    return match["id"] or match["tmp"]


def log_name(stream_id: str) -> str:
    """Return the file name of a log. `stream_id`: 32 lower-case hex digits."""
    return f"rrpa_{_checked(stream_id)}"


def table_name(table_id: str) -> str:
    """Return the file name of an engine's table. `table_id`: 32 lower-case hex digits."""
    return f"rrpa_table_{_checked(table_id)}"


def temporary_name(segment_id: str, pid: int) -> str:
    """Return the name a segment has while it is being born."""
    return f"rrpa_tmp_{_checked(segment_id)}_{pid}"


def _checked(segment_id: str) -> str:
    if not is_id(segment_id):
        raise StreamMisuse(f"segment id {segment_id[:64]!r} is not 32 lower-case hex digits")
    return segment_id


def check_stream_bytes(stream_bytes: int) -> None:
    """Raise StreamMisuse unless `stream_bytes` is a legal size of a log file."""
    if stream_bytes % PAGE_BYTES or not MIN_STREAM_BYTES <= stream_bytes <= MAX_STREAM_BYTES:
        raise StreamMisuse(
            f"stream size {stream_bytes} is not a multiple of {PAGE_BYTES}"
            f" from {MIN_STREAM_BYTES} to {MAX_STREAM_BYTES} bytes (--stream-bytes)"
        )


def tails_offset(slots: int) -> int:
    """Return where a table's tails begin: after the header and whole pages of words."""
    if not 1 <= slots <= MAX_SLOTS:
        raise StreamMisuse(f"a table has 1 to {MAX_SLOTS} slots, not {slots}")
    return HEADER_BYTES + _pages(slots * 8)


def table_bytes(slots: int) -> int:
    """Return the size of a table file: the header, the words and the tails, each in whole pages."""
    return tails_offset(slots) + _pages(slots * TAIL_RECORD_BYTES)


def _pages(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def end_crc32(header: bytes | bytearray) -> int:
    """Return the checksum of the end fields in the first 4 KiB of a log."""
    fields = zlib.crc32(header[END_OFFSET:END_CRC_OFFSET])
    return zlib.crc32(header[STOP_OFFSET:END_STOP_OFFSET], fields)
