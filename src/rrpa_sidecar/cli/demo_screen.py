"""What the demo shows while it works: a spinner on a terminal, plain lines in a pipe.

All of it goes to stderr; stdout has the answer and the line of numbers.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

STILL_EVERY_S = 5.0


class Screen:
    """Shows steps, one at a time."""

    def __init__(self) -> None:
        self._console = _console()

    @contextlib.contextmanager
    def step(self, doing: str) -> Iterator[None]:
        """Show that `doing` goes on, and at its end how long it took."""
        began = time.monotonic()
        with self._spinner(doing) if self._console else self._lines(doing):
            yield
        self.say(f"{doing}: {time.monotonic() - began:.1f} s")

    def say(self, line: str) -> None:
        """Show one line."""
        print(line, file=sys.stderr, flush=True)

    def _spinner(self, doing: str) -> Any:
        assert self._console is not None
        return self._console.status(doing)

    @contextlib.contextmanager
    def _lines(self, doing: str) -> Iterator[None]:
        """Say every few seconds that a step goes on; a short one needs no words."""
        over, began = threading.Event(), time.monotonic()

        def tell() -> None:
            if not over.wait(1.0):
                self.say(f"{doing} ...")
            while not over.wait(STILL_EVERY_S):
                self.say(f"{doing} ... {time.monotonic() - began:.0f} s so far")

        teller = threading.Thread(target=tell, daemon=True)
        teller.start()
        try:
            yield
        finally:
            over.set()
            teller.join()


def _console() -> Any:
    """Return rich's console for a terminal, None for a pipe or without rich."""
    if not sys.stderr.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(stderr=True)
