"""Limits and times that every front end has alike."""

from __future__ import annotations

from rrpa_sidecar.config import Config

ROOM_FOR_REFUSALS = 4096
"""Calls of one connection above all that can be open, so that we refuse with a reason and not
HTTP/2 without one: a client opens many before it has read how many it may, and gRPC's library
retries a refused one only once."""

GREETING_S = 10
"""A peer that connects and speaks no HTTP/2 is dropped."""

KEEPALIVE_S, KEEPALIVE_TIMEOUT_S = 20, 10
"""A caller whose network drops without a word is noticed after both."""


def streams_limit(config: Config) -> int:
    """Return how many streams one connection may have open (SETTINGS_MAX_CONCURRENT_STREAMS).

    Beside the calls that run or wait as many may read resumed streams.
    """
    return 2 * config.max_open_calls + ROOM_FOR_REFUSALS
