"""What a benchmark is given when it runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class BenchmarkFailed(Exception):
    """No figure can be given: says what was expected, what was found, and where to look."""


class CannotRun(BenchmarkFailed):
    """Something is not installed. The benchmark goes on without that server and says so."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run of a benchmark.

    runs: rounds; in each, every server is measured once, one after the other.
    workdir: a private short directory (sockets fit in it), removed after the run.
    stack: closed after the run; what is started on it ends with it.
    say: prints a line of progress on stderr.
    extra: values of the benchmark's own options.
    """

    quick: bool
    runs: int
    workdir: Path
    stack: ExitStack
    say: Callable[[str], None]
    extra: dict[str, Any] = field(default_factory=dict)
