"""What a test run leaves behind: directories, segments, processes.

Several runs may share the machine, so everything is attributed to this run: directories by
recording who made them, processes by a variable in their environment, segments in /dev/shm
itself by being new and held by nobody. A run may have worker processes; it is one run all the same.
"""

from __future__ import annotations

import fcntl
import os
import pathlib
import shutil
import tempfile
import time
from typing import Any

MARK = "PYTEST_OF_RRPA_SIDECAR"
"""Its value is the run's private folder, in which its processes note what they make."""
SHM = pathlib.Path("/dev/shm")
GRACE_S = 5.0
OTHERS_GRACE_S = 60.0
"""For a segment that may be another run's: a finished stream's file stays for half a minute."""


class Leftovers:
    """Begin before the first test and the first worker, ask `found` after the last."""

    def __init__(self) -> None:
        self.folder = pathlib.Path(tempfile.mkdtemp(dir="/tmp", prefix="rrpa-run-"))
        os.environ[MARK] = str(self.folder)
        self._segments_before = self._segments()

    @staticmethod
    def _segments() -> set[str]:
        return {entry.name for entry in SHM.glob("rrpa_*")}

    def found(self) -> list[str]:
        """Return one sentence for each thing that is still there after a short grace."""
        deadline = time.monotonic() + GRACE_S
        while (left := self._now()) and time.monotonic() < deadline:
            time.sleep(0.1)
        deadline += OTHERS_GRACE_S
        while self._left_segments() and self._other_runs() and time.monotonic() < deadline:
            time.sleep(0.5)
            left = self._now()
        return left

    def forget(self) -> None:
        """Remove the run's folder."""
        os.environ.pop(MARK, None)
        shutil.rmtree(self.folder)

    def _now(self) -> list[str]:
        return [
            *(f"directory {path}" for path in self._made() if path.exists()),
            *(f"segment {path}, held by nobody" for path in self._left_segments()),
            *(f"process {pid}: {line}" for pid, line in self._processes()),
        ]

    def _made(self) -> list[pathlib.Path]:
        noted = self.folder / "made"
        return (
            [pathlib.Path(line) for line in noted.read_text().splitlines()]
            if noted.exists()
            else []
        )

    def _left_segments(self) -> list[pathlib.Path]:
        new = sorted(self._segments() - self._segments_before)
        return [SHM / name for name in new if not _held(SHM / name)]

    def _processes(self) -> list[tuple[int, str]]:
        return [(pid, line) for pid, run, line in _marked() if run == str(self.folder)]

    def _other_runs(self) -> bool:
        return any(run != str(self.folder) for _, run, _ in _marked())


def note_directories() -> None:
    """Have this process note each directory named rrpa… that it makes, for the run it is of."""
    run = pathlib.Path(os.environ[MARK])
    mkdtemp = tempfile.mkdtemp

    def noting(*args: Any, **kwargs: Any) -> Any:
        made = mkdtemp(*args, **kwargs)
        path = pathlib.Path(os.fsdecode(made))
        if path.name.startswith("rrpa"):
            with (run / "made").open("a") as noted:
                noted.write(f"{path}\n")
        return made

    tempfile.mkdtemp = noting  # type: ignore[assignment]


def _marked() -> list[tuple[int, str, str]]:
    """Return (pid, run, command line) of every other process that a run has started."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        runs = [
            each.partition(b"=")[2] for each in variables if each.startswith(MARK.encode() + b"=")
        ]
        found += [(int(entry.name), os.fsdecode(run), line) for run in runs]
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
