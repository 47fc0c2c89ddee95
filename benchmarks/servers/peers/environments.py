"""One virtual environment per peer, made when a benchmark first needs it.

A peer's dependencies must not touch the product's, nor another peer's. What was made stays in
`benchmarks/.build/` (git-ignored), under a name that changes with the versions asked for.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import distributions
from pathlib import Path

BUILD_DIR = Path(__file__).resolve().parents[2] / ".build"
MADE = "made.json"
"""Written last: an environment without it was interrupted and is made again."""

Say = Callable[[str], None]


class NotInstalled(Exception):
    """A peer that cannot be had here. The text is one line: which, why, and where more is said."""


@dataclass(frozen=True)
class Environment:
    """What to install. `main` is the distribution whose version the results show."""

    name: str
    main: str
    requirements: tuple[str, ...]
    checked: str
    note: str = ""


ENVIRONMENTS = {
    each.name: each
    for each in (
        Environment(
            "fastapi",
            "fastapi",
            ("fastapi==0.165.0", "uvicorn==0.54.0", "uvloop==0.23.0", "httptools==0.9.0"),
            checked="2026-11-30",
        ),
        Environment(
            "litellm",
            "litellm",
            ("litellm[proxy]==1.106.12",),
            checked="2026-11-30",
            note="never 1.107.0, which was reported compromised",
        ),
        Environment("vllm-router", "vllm-router", ("vllm-router==0.1.17",), checked="2026-11-30"),
        Environment("smg", "smg", ("smg==1.13.0",), checked="2026-11-30"),
    )
}
"""The one place with the peers' versions, and the day on which each was seen to work."""


@dataclass(frozen=True)
class Made:
    """A finished environment. size_bytes: on disk. versions: distribution → version."""

    path: str
    install_s: float
    size_bytes: int
    versions: dict[str, str]

    def program(self, name: str) -> str:
        """Return the path of the command `name`, as `python` or `uvicorn`."""
        return str(Path(self.path) / "bin" / name)


def ensure(name: str, say: Say, build_dir: Path = BUILD_DIR) -> Made:
    """Return the environment of the peer `name`; make it if it is not there.

    say: gets one short line at a time about what is being installed.
    build_dir: several processes may share it; one makes, the others wait.

    Raises:
      NotInstalled: it could not be made. A half-made one is removed.
    """
    wanted = ENVIRONMENTS[name]
    path = build_dir / folder(wanted)
    build_dir.mkdir(parents=True, exist_ok=True)
    with _alone(path.with_suffix(".lock")):
        if not (path / MADE).exists():
            _make(wanted, path, say)
        return Made(**json.loads((path / MADE).read_text()))


def folder(wanted: Environment) -> str:
    """Return the name of its directory, which changes with what is in it."""
    what = json.dumps([wanted.requirements, sys.version_info[:3]])
    return f"{wanted.name}-{hashlib.sha256(what.encode()).hexdigest()[:12]}"


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _make(wanted: Environment, path: Path, say: Say) -> None:
    began_s = time.monotonic()
    shutil.rmtree(path, ignore_errors=True)
    log = path.with_suffix(".log")
    say(f"install: {' '.join(wanted.requirements)}")
    try:
        venv.create(path)
        _install(wanted, path, log, say)
        versions = _versions(path)
    except (OSError, subprocess.CalledProcessError) as exc:
        shutil.rmtree(path, ignore_errors=True)
        raise NotInstalled(f"{wanted.name}: {_why(log, exc)}; all of it: {log}") from exc
    size_bytes = sum(each.lstat().st_size for each in path.rglob("*"))
    made = Made(str(path), round(time.monotonic() - began_s, 1), size_bytes, versions)
    (path / MADE).write_text(json.dumps(asdict(made)))
    say(f"installed: {wanted.name} in {made.install_s:.0f} s, {size_bytes / 1e6:.0f} MB")


def _install(wanted: Environment, path: Path, log: Path, say: Say) -> None:
    # Our own pip, working on the environment, which needs none inside.
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    argv += ["--python", str(path / "bin" / "python")]
    argv += ["install", "--progress-bar", "off", *wanted.requirements]
    with (
        log.open("w") as out,
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip,
    ):
        assert pip.stdout is not None
        try:
            for line in pip.stdout:
                out.write(line)
                if line.startswith(("Collecting ", "Installing collected ")):
                    say("  " + line.strip()[:72])
        except BaseException:
            pip.kill()  # else one who is interrupted waits for the rest of it
            raise
    if pip.returncode:
        raise subprocess.CalledProcessError(pip.returncode, argv)


def _versions(path: Path) -> dict[str, str]:
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = path / "lib" / python / "site-packages"
    return {each.name: each.version for each in distributions(path=[str(packages)])}


def _why(log: Path, exc: Exception) -> str:
    """Return pip's own reason, which is its last line with ERROR, else the exception."""
    said = log.read_text().splitlines() if log.exists() else []
    reasons = [line.strip() for line in said if line.startswith("ERROR:")]
    return reasons[-1] if reasons else str(exc)
