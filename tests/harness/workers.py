"""How `make test` shares the tests among a few worker processes (pytest-xdist).

Most of the suite's time is waiting for real processes, so several workers take turns on few
cores. A worker gets whole groups of tests: those that share a running product stay together, so
that it starts once. A test marked `alone` runs while no other worker does.
"""

from __future__ import annotations

import contextlib
import fcntl
import pathlib
import re
from collections.abc import Iterator

import pytest

WORKERS = 4
"""The suite computes for 6 minutes and waits for as long: more workers find 2 cores busy."""

TOGETHER = ("hostile", "metrics", "config", "stream")
"""Folders that are one group: their product runs for all of it, or they are over in a second."""

LONGEST_FIRST = ("conformance", "packaging", "hostile", "demo", "bounds", "faults", "edge")
"""Folders to begin with; a long group that begins last leaves the other workers idle."""

_FILE = re.compile(r"tests/(?:(?P<folder>\w+)/)?[^:]*")
_STACK = re.compile(r"\[.*\b(batched|shipped|grpcio(?!-tcp))\b.*\]")
"""The parameter `stack` in a test's name; `grpcio-tcp` is one of a caller."""


def count_for(arguments: list[str]) -> int:
    """Return how many workers `arguments`, the paths given to pytest, are worth; 0: none."""
    one_file = len(arguments) == 1 and ".py" in arguments[0]
    return 0 if one_file else WORKERS


def group_of(nodeid: str) -> str:
    """Return the name of the group that a test belongs to; a group runs in one worker, in order."""
    found = _FILE.match(nodeid)
    folder = found["folder"] if found else ""
    if folder == "conformance":
        # One running product for each front end; some files have their own.
        stack = _STACK.search(nodeid)
        if stack:
            return f"{folder} {stack[1]}"
    return folder if folder in TOGETHER else nodeid.partition("::")[0]


def rank(nodeid: str) -> int:
    """Return a sort key that puts long groups first."""
    found = _FILE.match(nodeid)
    folder = found["folder"] if found else None
    return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)


class Room:
    """Holds many tests at once, or one that is alone.

    folder: of this run; its workers share the two files that are locked there.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._door = (folder / "door").open("w")
        self._room = (folder / "room").open("w")

    @contextlib.contextmanager
    def entered(self, alone: bool) -> Iterator[None]:
        # Who wants to be alone waits in the door: nobody can enter before it, for ever.
        fcntl.flock(self._door, fcntl.LOCK_EX)
        fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(self._door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")
