"""Which processor each part may use: the same for the product and for every peer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from benchmarks.cpu import tree

SERVER = "server"


def places() -> tuple[set[int], set[int]]:
    """Return the processors of the server under test, and those of everything else.

    The server has one to itself, so that "what one core can carry" means something; engine,
    Envoy and client share the rest. With a single processor all share it.
    """
    first, *others = sorted(os.sched_getaffinity(0))
    return {first}, set(others) or {first}


def pin(parts: Mapping[str, int]) -> None:
    """Put each part, with all its threads and children, in its place.

    parts: role → pid. Threads that start later inherit the place of the one that starts them.
    """
    servers, others = places()
    for role, top in parts.items():
        for pid in tree(top):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                    os.sched_setaffinity(int(thread.name), servers if role == SERVER else others)
