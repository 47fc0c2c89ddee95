"""What can go wrong, as exceptions.

Raise one of these where the fault is known, with a sentence that says what was expected, what
was found, where, and what to do. The gRPC code is chosen once, in `rrpa_sidecar.status`.
"""

from __future__ import annotations


class RRPAError(Exception):
    """Base of every error that may reach a caller."""


class InvalidRequest(RRPAError):
    """The caller's request is wrong; sending it again will not help."""


class ModelNotFound(RRPAError):
    """No attached engine serves the model that was asked for."""


class StreamNotFound(RRPAError):
    """No stream has this id, or it is gone."""


class OffsetOutOfRange(RRPAError):
    """The stream has fewer bytes than the offset at which it was to be resumed."""


class CapacityExhausted(RRPAError):
    """A limit was reached; the text names it and its size."""


class NoEngine(RRPAError):
    """No engine is attached yet; trying again later may help."""


class Draining(RRPAError):
    """The sidecar is going away and takes no new work."""


class EngineLost(RRPAError):
    """The engine's process or control connection died in the middle of a stream."""


class DeadlinePassed(RRPAError):
    """The caller's deadline passed while its request waited."""


class StreamCancelled(RRPAError):
    """Somebody cancelled the stream while it was being read."""


class EngineFailed(RRPAError):
    """The engine reported an error of its own."""


class CorruptLog(RRPAError):
    """A segment breaks a rule of shm/FORMAT.md; its stream cannot go on."""


class AttachRefused(RRPAError):
    """An engine may not attach as it is (its shared memory is not ours, say)."""


class EngineStatus(RRPAError):
    """A status that an engine chose itself: passed on as it is."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class StartupError(RRPAError):
    """The daemon cannot start: a setting, a port, a socket or a directory."""


class SegmentMissing(RRPAError):
    """A segment does not exist (yet)."""


class LogFull(RRPAError):
    """A log's data area is used up; the stream has to end."""


class ShmFull(RRPAError):
    """No room for more shared memory: in the file system, or below a memory limit."""


class StreamMisuse(RRPAError):
    """Our own code, or an engine's, broke an interface's rules."""
