"""The command `rrpa`: its first lines, which have to be quick. The rest is in `group.py`."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the command line; the console script's entry."""
    if sys.argv[1:2] == ["serve"]:
        _end_quietly_until_the_daemon_listens()
    from rrpa_sidecar.cli.group import run  # imports click, 20 ms: only after signals are heard

    sys.exit(run())


def _end_quietly_until_the_daemon_listens() -> None:
    # While modules load there is nothing to clean up. As PID 1 a process without a handler
    # does not even see the signal: the kernel drops it, and nobody sends another before SIGKILL.
    # The daemon puts its own handlers in place of these.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
