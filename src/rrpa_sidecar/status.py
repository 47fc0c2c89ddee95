"""The one table from exceptions to gRPC status codes."""

from __future__ import annotations

from enum import IntEnum

from rrpa_sidecar import errors

MESSAGE_LIMIT_BYTES = 199
"""Longest error text on the wire: requirement P8 asks for less than 200 bytes."""


class Code(IntEnum):
    """The gRPC status codes, without importing gRPC. Source: grpc/status.proto."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


CODES: dict[type[errors.RRPAError], Code] = {
    errors.InvalidRequest: Code.INVALID_ARGUMENT,
    errors.ModelNotFound: Code.NOT_FOUND,
    errors.StreamNotFound: Code.NOT_FOUND,
    errors.OffsetOutOfRange: Code.OUT_OF_RANGE,
    errors.CapacityExhausted: Code.RESOURCE_EXHAUSTED,
    errors.NoEngine: Code.UNAVAILABLE,
    errors.Draining: Code.UNAVAILABLE,
    errors.EngineLost: Code.UNAVAILABLE,
    errors.DeadlinePassed: Code.DEADLINE_EXCEEDED,
    errors.StreamCancelled: Code.CANCELLED,
    errors.EngineFailed: Code.INTERNAL,
    errors.CorruptLog: Code.DATA_LOSS,
    errors.AttachRefused: Code.FAILED_PRECONDITION,
    errors.LogFull: Code.RESOURCE_EXHAUSTED,
    errors.ShmFull: Code.RESOURCE_EXHAUSTED,
    errors.SegmentMissing: Code.DATA_LOSS,
    errors.StreamMisuse: Code.INTERNAL,
    errors.StartupError: Code.INTERNAL,
    errors.RRPAError: Code.INTERNAL,
}


def status_of(error: Exception) -> tuple[Code, str]:
    """Return the code and the one line of text that a caller gets for `error`.

    Anything that is not ours is INTERNAL with a fixed text: its own text may hold what callers
    must not see, and goes to the log instead.
    """
    if isinstance(error, errors.EngineStatus):
        known = error.code in Code.__members__.values() and error.code not in (
            Code.OK,
            Code.UNKNOWN,
        )
        return (Code(error.code) if known else Code.INTERNAL), one_line(str(error))
    for kind in type(error).__mro__:
        if kind in CODES:
            return CODES[kind], one_line(str(error))
    return Code.INTERNAL, "the sidecar failed; its log has the details under this request id"


def one_line(text: str, limit_bytes: int = MESSAGE_LIMIT_BYTES) -> str:
    """Return `text` as one line of printable text, cut to `limit_bytes` of UTF-8.

    Control characters become spaces; the cut falls between characters and is marked.
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    raw = line.encode("utf-8", "replace")
    if len(raw) <= limit_bytes:
        return raw.decode()
    mark = "…"
    return raw[: limit_bytes - len(mark.encode())].decode("utf-8", "ignore") + mark
