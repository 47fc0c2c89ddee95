"""Kills the process that writes a log once a numbered step of FORMAT.md, "Writing", is done."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import signal
from typing import Any

from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import PlainDirectory

STORES = {19: 5, 17: 7, 16: 8, 20: 9, 18: 13}
"""Words of the header, by the step that stores them."""


@dataclasses.dataclass(frozen=True)
class Death:
    """times: it comes when the step is done so often. half: of step 6, before it is.

    by: SIGSTOP, from which one can come back, is the other one.
    """

    step: int
    times: int = 1
    half: bool = False
    by: int = signal.SIGKILL

    def __str__(self) -> str:
        return f"step-{self.step}-{self.times}{'-half' if self.half else ''}"


class Steps:
    """Kills this process once a step is done for the nth time."""

    def __init__(self, death: Death) -> None:
        self._death = death
        self._left = death.times

    def done(self, step: int) -> None:
        if step == self._death.step:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), self._death.by)

    def watch_calls(self) -> None:
        """Know of each step that is a system call."""
        pwrite, flock = os.pwrite, fcntl.flock

        def watched_pwrite(fd: int, data: bytes, offset: int) -> int:
            step = {0: 3, layout.END_OFFSET: 12}.get(offset, 6)
            if self._death.half and step == self._death.step and self._left == 1:
                data = data[: len(data) // 2]
            done = pwrite(fd, data, offset)
            self.done(step)
            return done

        def watched_flock(fd: int, operation: int) -> None:
            flock(fd, operation)
            self.done(16 if operation == fcntl.LOCK_UN else 2)

        os.pwrite, fcntl.flock = watched_pwrite, watched_flock  # type: ignore[assignment]

    def watch_stores(self, writer: Any, table: Any) -> None:
        """Know of each step that is a store to a mapping."""
        writer._words = _Words(writer._words, self)
        table._words = _Words(table._words, self, table=True)


class _Words:
    """Mapped words that tell each store."""

    def __init__(self, words: Any, steps: Steps, table: bool = False) -> None:
        self._words, self._steps, self._table = words, steps, table

    def __setitem__(self, index: int, value: int) -> None:
        self._words[index] = value
        self._steps.done((14 if value & 1 else 10) if self._table else STORES[index])

    def release(self) -> None:
        self._words.release()


class Directory(PlainDirectory):
    """A directory in which the first and the last step of a birth are told."""

    def __init__(self, path: str, steps: Steps) -> None:
        super().__init__(path)
        self._steps = steps

    def create(self, name: str, size: int, mode: int = layout.FILE_MODE) -> int:
        fd = super().create(name, size, mode)
        self._steps.done(1)
        return fd

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self._steps.done(4)
