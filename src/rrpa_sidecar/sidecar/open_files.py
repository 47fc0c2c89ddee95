"""How many files the process may open, against how many its streams need."""

from __future__ import annotations

from rrpa_sidecar.config import Config
from rrpa_sidecar.shm.descriptors import RESERVED, use_enough

OWN = 64
"""What the process itself has open: 32 when idle, with all sockets listening."""

PER_ENGINE = 2
"""Its connection and its table."""


def needed(config: Config) -> int:
    """Return how many descriptors the sidecar needs when it has all the streams it promises."""
    return config.max_streams + PER_ENGINE * config.max_engines + OWN + RESERVED


def allow_as_many_as_needed(config: Config) -> None:
    """Use all the descriptors that this process may have: each stream needs one.

    Raises:
      StartupError: the hard limit is too low for the streams that the settings promise.
    """
    use_enough(
        needed(config),
        f"{config.max_streams} streams (--shm-bytes / --stream-bytes) and {config.max_engines}"
        " engines (--max-engines)",
        "or lower --shm-bytes",
    )
