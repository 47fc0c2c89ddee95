"""Programs that are compiled for a benchmark, kept until something they are made of changes."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.plan import CannotRun

BUILD = Path(__file__).parent / ".build"


def built(name: str, made_of: Iterable[bytes], build: Callable[[Path], Path]) -> Path:
    """Return the program `name`, which `build` makes if there is none from `made_of`.

    made_of: sources, flags and versions.
    build: makes the program in the directory that it is given, and returns its path.
    """
    mark = hashlib.sha256(b"\0".join(made_of)).hexdigest()[:16]
    program = BUILD / f"{name}-{mark}"
    if program.exists():
        return program
    BUILD.mkdir(exist_ok=True)
    print(
        f"compile: {name}, once; it is kept in benchmarks/{BUILD.name}", file=sys.stderr, flush=True
    )
    # In the same file system, so that two runs that build at once each rename a whole file.
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=BUILD) as workdir:
        build(Path(workdir)).rename(program)
    return program


def need(program: str, packages: str) -> str:
    """Return the path of a tool. Raises CannotRun, naming the Debian packages it belongs to."""
    found = shutil.which(program)
    if found is None:
        raise CannotRun(f"{program} is not installed; apt-get install {packages}, or make bench")
    return found


def output(argv: list[str], packages: str) -> str:
    """Return what a tool prints. Raises CannotRun with its complaint and what to install."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no words"]
        wrong = next((line for line in lines if "error" in line.lower()), lines[0])
        raise CannotRun(f"{argv[0]}: {wrong.strip()}; apt-get install {packages}, or make bench")
    return done.stdout
