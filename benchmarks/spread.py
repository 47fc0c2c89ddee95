"""The same figure measured several times. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any


def spread(values: Sequence[float], digits: int = 4) -> dict[str, Any]:
    """Return {"median", "min", "max", "runs"} of `values`, in the order they were measured.

    digits: significant digits that are kept; no measurement here is better than that.
    """
    if not values:
        raise ValueError("no value was measured, so there is no spread")
    kept = [significant(value, digits) for value in values]
    return {
        "median": significant(statistics.median(values), digits),
        "min": min(kept),
        "max": max(kept),
        "runs": kept,
    }


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """Return the spread of ours / theirs, round by round.

    Both were measured in the same round, seconds apart, so what else the machine did in that
    round is in both, and mostly cancels.

    Raises ValueError when the rounds do not match.
    """
    return spread([our / their for our, their in zip(ours, theirs, strict=True)])


def significant(value: float, digits: int = 4) -> float:
    """Return `value` with so many significant digits."""
    return float(f"{value:.{digits}g}")


def text(found: dict[str, Any], unit: str = "") -> str:
    """Return "2.41 µs (2.38–2.52)": the median, and the least and largest of the runs."""
    low, high = short(found["min"]), short(found["max"])
    between = f" ({low}–{high})" if len(found["runs"]) > 1 else ""
    return f"{short(found['median'])}{' ' + unit if unit else ''}{between}"


def short(value: float) -> str:
    """Return three significant digits without an exponent: 0.123, 12.3, 1230."""
    if value == 0:
        return "0"
    rounded = significant(value, 3)
    if abs(rounded) >= 100:
        return f"{rounded:.0f}"
    return f"{rounded:.3g}"


def times(found: dict[str, Any], factor: float) -> dict[str, Any]:
    """Return the spread in another unit: times(µs, 1e-3) is in ms."""
    return spread([run * factor for run in found["runs"]])
