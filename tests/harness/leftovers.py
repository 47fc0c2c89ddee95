"""What a test run leaves behind: directories, segments, processes.

Several runs may share the machine, so everything is attributed to this run: directories by
recording who made them, processes by a variable in their environment, segments in /dev/shm
itself by being new and held by nobody.
"""

from __future__ import annotations

import fcntl
import os
import pathlib
import tempfile
import time
from typing import Any

MARK = "PYTEST_OF_RRPA_SIDECAR"
SHM = pathlib.Path("/dev/shm")
GRACE_S = 5.0


class Leftovers:
    """Begin before the first test, ask `found` after the last."""

    def __init__(self) -> None:
        self._mark = f"{os.getpid()}-{time.monotonic_ns()}"
        os.environ[MARK] = self._mark
        self._made: list[pathlib.Path] = []
        self._segments_before = self._segments()
        self._mkdtemp = tempfile.mkdtemp
        tempfile.mkdtemp = self._record  # type: ignore[assignment]

    def _record(self, *args: Any, **kwargs: Any) -> Any:
        made = self._mkdtemp(*args, **kwargs)
        path = pathlib.Path(os.fsdecode(made))
        if path.name.startswith("rrpa"):
            self._made.append(path)
        return made

    @staticmethod
    def _segments() -> set[str]:
        return {entry.name for entry in SHM.glob("rrpa_*")}

    def found(self) -> list[str]:
        """Return one sentence for each thing that is still there after a short grace."""
        tempfile.mkdtemp = self._mkdtemp
        os.environ.pop(MARK, None)
        deadline = time.monotonic() + GRACE_S
        while (left := self._now()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def _now(self) -> list[str]:
        return [
            *(f"directory {path}" for path in self._made if path.exists()),
            *(
                f"segment {SHM / name}, held by nobody"
                for name in sorted(self._segments() - self._segments_before)
                if not _held(SHM / name)
            ),
            *(f"process {pid}: {line}" for pid, line in self._processes()),
        ]

    def _processes(self) -> list[tuple[int, str]]:
        found = []
        wanted = f"{MARK}={self._mark}".encode()
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found.append((int(entry.name), line))
            except OSError:
                continue
        return found


def _held(path: pathlib.Path) -> bool:
    try:
        with path.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except OSError:
        return True
    return False
