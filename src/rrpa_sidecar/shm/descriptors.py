"""How near the process is to its limit of open files (`ulimit -n`).

The kernel gives the lowest free number, so the number of a descriptor tells how many there are
at least. Logs leave the numbers at the top free, for connections and for the removal of files:
without a descriptor no file can be checked, and what cannot be checked is not removed.
"""

from __future__ import annotations

import os
import resource
import sys

from rrpa_sidecar.errors import CapacityExhausted, StartupError

RESERVED = 32
"""Numbers that logs leave free; a quarter of the limit where that is less."""


def use_all() -> int:
    """Let this process open as many files as its hard limit allows; return how many.

    The usual soft limit of 1,024 is there for programs that call select(2).
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return sys.maxsize if most == resource.RLIM_INFINITY else most


def use_enough(need: int, what: str, instead: str) -> None:
    """Let this process open as many files as it may, and see that they are enough.

    need: how many it will need.
    what, instead: subject of the sentence for people, and what they can do besides raising the
      limit.

    Raises:
      StartupError: the hard limit is too low. Later, streams would fail one by one, under load.
    """
    most = use_all()
    if most < need:
        raise StartupError(
            f"the process may open {most} files (ulimit -Hn), but {what} need {need}; raise the"
            f" limit, {instead}"
        )


def is_reserved(fd: int) -> bool:
    """Whether a log must not keep `fd`."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return fd >= limit - min(RESERVED, limit // 4)


def check_room() -> None:
    """See whether one more log could be opened. Costs 3 µs.

    Raises:
      CapacityExhausted: it could not.
    """
    try:
        fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as exc:
        raise too_many() from exc
    os.close(fd)
    if is_reserved(fd):
        raise too_many()


def too_many() -> CapacityExhausted:
    """Return the error for EMFILE, with the number."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return CapacityExhausted(
        f"nearly all {limit} files that the process may open are open (ulimit -n); raise that"
        " limit, or try later"
    )
