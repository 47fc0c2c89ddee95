"""How many files the process may open, against how many its streams need."""

from __future__ import annotations

from rrpa_sidecar.config import Config
from rrpa_sidecar.errors import StartupError
from rrpa_sidecar.shm.descriptors import RESERVED, use_all

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
      StartupError: the hard limit is too low for the streams that the settings promise. Later
        they would be refused one by one, under load.
    """
    most, need = use_all(), needed(config)
    if most < need:
        raise StartupError(
            f"the process may open {most} files (ulimit -Hn), but {config.max_streams} streams"
            f" (--shm-bytes / --stream-bytes) and {config.max_engines} engines (--max-engines)"
            f" need {need}; raise the limit, or lower --shm-bytes"
        )
