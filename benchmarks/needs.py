"""What to say when a package of the benchmarks is not installed; imports nothing but Python."""

from __future__ import annotations

OURS = "benchmarks"
REMEDY = "run make bench BENCH=list, or pip install -e '.[bench]' in this environment"


def told(exc: ModuleNotFoundError) -> str:
    """Return one line that says what is missing and how to get it.

    Raises `exc` again when a module of the benchmarks themselves is missing: that is a fault.
    """
    name = exc.name or str(exc)
    if name.partition(".")[0] == OURS:
        raise exc
    return f"benchmarks: the package {name} is not installed here; {REMEDY}"
