"""Whether the sidecar's memory is flat. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from statistics import median

LONG_S = 40.0
"""A shorter life says nothing: all that is loaded at first use comes in its beginning."""
GROWTH_BYTES = 1_500_000
"""Three times what the allocators' moods were ever seen to be; a leak is for ever, so it gets here
in a run that is long enough: 1 KiB of each stream in some two minutes."""

Sample = tuple[float, int, int]
"""(seconds, process id, resident bytes)"""


def growth(samples: Sequence[Sample]) -> list[str]:
    """Return a sentence for each sidecar that had clearly more at its end than in its middle."""
    return [
        f"the sidecar with pid {pid} grew: {_told(life)}"
        for pid, life in _long_lives(samples)
        if _after(life) - _before(life) > GROWTH_BYTES
    ]


def judged(samples: Sequence[Sample]) -> str:
    """Return what `growth` had to judge by."""
    lives = [life for _, life in _long_lives(samples)]
    if not lives:
        return f"memory is not judged: no sidecar lived for {LONG_S:g} s"
    return f"memory of {len(lives)} long lives, the longest: {_told(max(lives, key=_seconds))}"


def _long_lives(samples: Sequence[Sample]) -> Iterator[tuple[int, list[Sample]]]:
    """Yield (process id, samples in order) of those that lived long enough."""
    for pid, several in itertools.groupby(samples, key=lambda each: each[1]):
        life = list(several)
        if _seconds(life) >= LONG_S:
            yield pid, life


def _seconds(life: list[Sample]) -> float:
    return life[-1][0] - life[0][0]


def _before(life: list[Sample]) -> float:
    """Return the bytes that it had in its second quarter."""
    quarter = len(life) // 4
    return median(size for _, _, size in life[quarter : 2 * quarter])


def _after(life: list[Sample]) -> float:
    """Return the bytes that it had in its last quarter."""
    return median(size for _, _, size in life[-(len(life) // 4) :])


def _told(life: list[Sample]) -> str:
    return (
        f"{_before(life) / 1e6:.2f} MB in the second quarter of {_seconds(life):.0f} s,"
        f" {_after(life) / 1e6:.2f} MB in the last"
    )
