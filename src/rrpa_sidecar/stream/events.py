"""What a stream's reader gets: data, and one last event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from rrpa_sidecar.errors import RRPAError


@dataclass(frozen=True, slots=True)
class Data:
    """The next bytes of the answer: one or more whole characters, never empty."""

    offset: int
    """Bytes delivered before these, counted after replacement."""
    data: bytes


@dataclass(frozen=True, slots=True)
class Finished:
    """The engine ended the answer. The last event of its stream."""

    offset: int
    """Bytes delivered in all."""
    reason: int
    """A number of `rrpa.v1.FinishReason`."""
    stop_sequence: str | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer ends here, unfinished. The last event of its stream."""

    offset: int
    """Bytes delivered in all."""
    error: RRPAError


Event: TypeAlias = Data | Finished | Failed
