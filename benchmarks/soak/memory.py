"""Whether the sidecar's memory is flat. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from statistics import median

LONG_S = 40.0
"""A shorter life says nothing: all that is loaded at first use comes in its beginning."""
GROWTH_BYTES = 8_000_000


def growth(samples: Sequence[tuple[float, int, int]]) -> list[str]:
    """Return a sentence for each sidecar that had clearly more at its end than in its middle.

    samples: (seconds, process id, resident bytes), in order.
    """
    found = []
    for pid, several in itertools.groupby(samples, key=lambda each: each[1]):
        life = list(several)
        if life[-1][0] - life[0][0] < LONG_S:
            continue
        quarter = len(life) // 4
        before = median(size for _, _, size in life[quarter : 2 * quarter])
        after = median(size for _, _, size in life[-quarter:])
        if after - before > GROWTH_BYTES:
            found.append(
                f"the sidecar with pid {pid} grew from {before / 1e6:.1f} to {after / 1e6:.1f} MB"
                f" in the second half of its {life[-1][0] - life[0][0]:.0f} s"
            )
    return found
