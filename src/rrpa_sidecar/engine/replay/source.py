"""The tokens of a text. Pure."""

from __future__ import annotations

DEFAULT_TEXT = (
    "The road is short: an engine writes its bytes, a sidecar carries them, and you read this. "
    "Çok yaşa! Ελληνικά, русский, עברית, हिन्दी, 日本語, 한국어, and some that need four bytes: "
    "🚂🛤️🌉 𓀀 𝔘𝔫𝔦𝔠𝔬𝔡𝔢. Nothing waits for a batch to fill, and no character arrives in halves.\n"
)
"""Characters of one to four bytes, so that cutting by bytes really splits some."""
STAMP_BYTES = 20


def cut(text: bytes, bytes_per_token: int) -> list[bytes]:
    """Return `text` in pieces of `bytes_per_token`, the last maybe shorter; none is empty."""
    return [text[at : at + bytes_per_token] for at in range(0, len(text), bytes_per_token)]


def stamp(now_ns: int) -> bytes:
    """Return `STAMP_BYTES` of ASCII: 19 digits of CLOCK_MONOTONIC nanoseconds and a space."""
    return b"%019d " % now_ns
