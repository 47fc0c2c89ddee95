"""How a job may end, in the words of an engine's author."""

from __future__ import annotations

from typing import NamedTuple

from rrpa_sidecar.pb import rrpa_pb2

REASONS: dict[str, int] = {
    "unspecified": rrpa_pb2.FINISH_REASON_UNSPECIFIED,
    "stop": rrpa_pb2.FINISH_REASON_STOP,
    "length": rrpa_pb2.FINISH_REASON_LENGTH,
    "stop_sequence": rrpa_pb2.FINISH_REASON_STOP_SEQUENCE,
    "cancelled": rrpa_pb2.FINISH_REASON_CANCELLED,
}
"""The reasons of `Job.finish`. A failure is no finish: `Job.fail`."""
FAILED: int = rrpa_pb2.FINISH_REASON_ERROR


class Usage(NamedTuple):
    """Tokens a job cost.

    completion_tokens counts every generated token, those without text included.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


def reason_number(reason: str) -> int:
    """Return the FinishReason of a name in `REASONS`."""
    try:
        return REASONS[reason]
    except KeyError:
        known = ", ".join(REASONS)
        raise ValueError(f"finish reason {reason!r} is not one of: {known}") from None
