"""Why a job is over before its engine said so."""

from __future__ import annotations

from enum import Enum


class JobOver(Exception):
    """Nothing more can be written to this job; drop it. Its end is already recorded."""


class JobCancelled(JobOver):
    """Nobody wants this stream any more, or the engine cannot go on. A lost sidecar is no reason:
    jobs go on without one."""


class Cause(Enum):
    """Who ended the work. The value is the sentence of `JobCancelled`."""

    CLIENT_LEFT = "the client left"
    TOO_LATE = "the client's deadline passed while no sidecar was there"
    STOPPING = "the engine is stopping"
    REFUSED = "the sidecar takes this engine no more"

    @property
    def fails(self) -> bool:
        """Whether somebody may still wait for the answer, and must not take it for whole."""
        return self in (Cause.STOPPING, Cause.REFUSED)
