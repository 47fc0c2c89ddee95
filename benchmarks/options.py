"""Options that several benchmarks have, worded alike; their values arrive in plan.extra."""

from __future__ import annotations

from collections.abc import Iterable

import click


def window(default: str) -> click.Option:
    """Return --window, as "window_s": seconds of each measurement."""
    return click.Option(
        ["--window", "window_s"],
        type=click.FloatRange(min=0.1),
        help=f"Seconds of each measurement.  [default: {default}]",
    )


def several(
    flag: str, name: str, choices: Iterable[str], default: str, about: str = ""
) -> click.Option:
    """Return an option that may be given several times, as a tuple called `name`.

    about: what it is, in front of what every such option says.
    """
    return click.Option(
        [flag, name],
        multiple=True,
        type=click.Choice(list(choices)),
        help=f"{about}{'; may' if about else 'May'} be repeated.  [default: {default}]",
    )
