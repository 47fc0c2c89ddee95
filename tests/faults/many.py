"""How often a test that repeats itself does so: a few hundred times, or as often as one says."""

from __future__ import annotations

import os


def times(default: int) -> int:
    """Return RRPA_RUNS, or `default`, which fits into a few seconds."""
    return int(os.environ.get("RRPA_RUNS", "0")) or default
