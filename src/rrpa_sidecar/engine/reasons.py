"""How a job may end, in the words of an engine's author."""

from __future__ import annotations

import errno
from typing import NamedTuple

from rrpa_sidecar.errors import StreamMisuse
from rrpa_sidecar.pb import rrpa_pb2
from rrpa_sidecar.status import Code, status_of

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


def failure_code(code: Code | int) -> Code:
    """Return `code`, if a failure can have it.

    Raises:
      StreamMisuse: it is OK, or no gRPC status code.
    """
    if code == Code.OK or code not in Code.__members__.values():
        raise StreamMisuse(f"{code!r} is not the gRPC status code of a failure")
    return Code(code)


def why_no_log(error: Exception) -> tuple[Code, str]:
    """Return what the client is told when `error` kept the log from being created."""
    if isinstance(error, OSError):
        full = error.errno in (errno.EMFILE, errno.ENFILE)
        code = Code.RESOURCE_EXHAUSTED if full else Code.INTERNAL
        return code, f"the engine cannot create the stream's log: {error.strerror}"
    return status_of(error)
