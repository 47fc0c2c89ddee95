"""Why a job is over before its engine said so."""

from __future__ import annotations

from enum import Enum


class JobOver(Exception):
    """Nothing more can be written to this job; drop it. Its end is already recorded."""


class JobCancelled(JobOver):
    """The client left, the sidecar went away, or the engine is stopping."""


class Cause(Enum):
    """Who ended the work. The value is the sentence of `JobCancelled`."""

    CLIENT_LEFT = "the client left"
    SIDECAR_LOST = "the connection to the sidecar is gone"
    STOPPING = "the engine is stopping"
