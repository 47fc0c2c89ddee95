"""How a stream ended, and its bytes in a log's header. Pure."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from rrpa_sidecar.errors import CorruptLog, StreamMisuse
from rrpa_sidecar.shm import layout

MAX_CODE = 16
_FIELDS = struct.Struct("<QIIIIIIII")
_CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class End:
    """What an engine says last about a stream.

    code: a gRPC status code; 0 is a stream that did not fail.
    reason: number of an rrpa.v1.FinishReason.
    stop_sequence: the stop that matched, or None; cut to 2,048 bytes.
    text: for the client when code is not 0; cut to 1,024 bytes of UTF-8.
    Both are cut between characters.
    """

    code: int = 0
    reason: int = 0
    stop_sequence: bytes | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    text: str = ""


def pack_end(end: End, final_bytes: int) -> bytes:
    """Return the header's bytes from END_OFFSET to END_STOP_OFFSET.

    Raises:
      StreamMisuse: a number does not fit its field.
    """
    if not 0 <= end.code <= MAX_CODE:
        raise StreamMisuse(f"end code {end.code} is not a gRPC status code (0 to {MAX_CODE})")
    counts = (end.reason, end.prompt_tokens, end.completion_tokens, end.cached_tokens)
    if not all(0 <= count <= layout.U32_MAX for count in counts):
        raise StreamMisuse(f"an end's numbers must fit 32 bits without sign: {counts}")
    stop = _cut(end.stop_sequence or b"", layout.STOP_LIMIT_BYTES)
    # "surrogatepass" would put bytes there that no reader can decode.
    text = _cut(end.text.encode("utf-8", "replace"), layout.TEXT_LIMIT_BYTES)
    flags = layout.FLAG_STOP_SEQUENCE if end.stop_sequence is not None else 0
    header = bytearray(layout.END_STOP_OFFSET)
    _FIELDS.pack_into(
        header,
        layout.END_OFFSET,
        *(final_bytes, end.code, *counts, flags, len(stop), len(text)),
    )
    header[layout.STOP_OFFSET : layout.STOP_OFFSET + len(stop)] = stop
    header[layout.TEXT_OFFSET : layout.TEXT_OFFSET + len(text)] = text
    _CRC.pack_into(header, layout.END_CRC_OFFSET, layout.end_crc32(header))
    return bytes(header[layout.END_OFFSET :])


def unpack_end(header: bytes, where: str) -> tuple[int, End]:
    """Return (final_bytes, end) from the first 4 KiB of a final log.

    where: the segment, for the error.

    Raises:
      CorruptLog: checksum, lengths or code are impossible.
    """
    found = _CRC.unpack_from(header, layout.END_CRC_OFFSET)[0]
    expected = layout.end_crc32(header)
    if found != expected:
        raise CorruptLog(f"end checksum {found:#010x}, expected {expected:#010x}, in {where}")
    values = _FIELDS.unpack_from(header, layout.END_OFFSET)
    final_bytes, code, reason, prompt, completion, cached, flags, stop_len, text_len = values
    if (
        code > MAX_CODE
        or flags & ~layout.FLAG_STOP_SEQUENCE
        or stop_len > layout.STOP_LIMIT_BYTES
        or text_len > layout.TEXT_LIMIT_BYTES
    ):
        raise CorruptLog(
            f"end fields code={code} flags={flags} stop={stop_len} text={text_len} in {where}"
            " are outside the format's limits"
        )
    stop = header[layout.STOP_OFFSET : layout.STOP_OFFSET + stop_len]
    text = header[layout.TEXT_OFFSET : layout.TEXT_OFFSET + text_len]
    return final_bytes, End(
        code=code,
        reason=reason,
        stop_sequence=bytes(stop) if flags & layout.FLAG_STOP_SEQUENCE else None,
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        text=text.decode("utf-8", "replace"),
    )


def _cut(raw: bytes, limit: int) -> bytes:
    """Return at most `limit` bytes of `raw`, never ending inside a UTF-8 character."""
    if len(raw) <= limit:
        return raw
    stop = limit
    while stop > limit - 4 and raw[stop] & 0xC0 == 0x80:
        stop -= 1
    return raw[:stop]
