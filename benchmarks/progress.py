"""What goes on, on stderr: a line for each step, and on a terminal its seconds while it lasts."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.status import Status

REFRESH_PER_S = 1
"""As rarely as a clock can tick: this is work beside what is measured."""
WORTH_SAYING_S = 1.0


class Progress:
    """Between entering and leaving, `say` begins a step, which lasts until the next."""

    def __init__(self, console: Console | None = None) -> None:
        found = console or Console(stderr=True, highlight=False)
        self._console = found if found.is_terminal and not found.is_dumb_terminal else None
        self._status: Status | None = None
        self._line = ""
        self._begun_s = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
        self._end_step()

    def say(self, line: str) -> None:
        """Say what begins now."""
        if self._console is None:
            print(line, file=sys.stderr, flush=True)
            return
        self._end_step()
        self._line, self._begun_s = line, time.monotonic()
        if self._status is None:
            self._status = self._console.status(self, refresh_per_second=REFRESH_PER_S)
            self._status.start()
        self._status.update()

    def __rich__(self) -> str:
        """Return the present step, as the terminal shows it."""
        return escape(f"{self._line}: {time.monotonic() - self._begun_s:.0f} s")

    def _end_step(self) -> None:
        if self._console is None or not self._line:
            return
        took_s = time.monotonic() - self._begun_s
        took = f": {took_s:.1f} s" if took_s >= WORTH_SAYING_S else ""
        self._console.print(escape(self._line + took), soft_wrap=True)
        self._line = ""
