"""The raw bytes of a token. Pure.

cyllama decodes a token's bytes as UTF-8 and puts U+FFFD where a token holds a part of a
character. The vocabulary's own text of the token tells the bytes: "<0xE2>" for the byte tokens
of SentencePiece vocabularies, and GPT-2's printable stand-ins for those of byte-level BPE.
"""

from __future__ import annotations

import re

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
REPLACEMENT = "\ufffd"


def _stand_ins() -> dict[str, int]:
    """Return GPT-2's table: printable Latin-1 stands for itself, the rest for U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}


STAND_INS = _stand_ins()


def raw_piece(piece: str, text: str) -> bytes:
    """Return a token's bytes.

    piece: what cyllama renders. text: how the vocabulary writes the token.
    """
    if REPLACEMENT not in piece:
        return piece.encode()
    byte_token = _BYTE_TOKEN.fullmatch(text)
    if byte_token:
        return bytes([int(byte_token[1], 16)])
    # A token that really contains U+FFFD, in a SentencePiece vocabulary.
    if REPLACEMENT in text or not all(char in STAND_INS for char in text):
        return piece.encode()
    return bytes(STAND_INS[char] for char in text)
