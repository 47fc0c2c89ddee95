"""What pyproject.toml declares, and fresh environments made from it.

usage: python -m tests.packaging.environments floor-tools DIR
       makes DIR an environment that generates the stubs with the floor of the ranges
"""

from __future__ import annotations

import functools
import os
import pathlib
import subprocess
import sys
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PB = ROOT / "src/rrpa_sidecar/pb"


@functools.cache
def project() -> dict:
    """The [project] table."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def declared() -> dict[str, Requirement]:
    """The daemon's own dependencies, extras not included, by canonical name."""
    found = map(Requirement, project()["dependencies"])
    return {canonicalize_name(one.name): one for one in found}


def declared_by(*extras: str) -> set[str]:
    """What these extras add, by canonical name; extras that they name are not followed."""
    lines = project()["optional-dependencies"]
    found = (Requirement(line) for extra in extras for line in lines[extra])
    return {canonicalize_name(one.name) for one in found}


def floor(name: str) -> Version:
    """The lowest version of a declared dependency that is allowed."""
    lowest = [s.version for s in declared()[name].specifier if s.operator in (">=", "==", "~=")]
    assert len(lowest) == 1, f"{name} declares no floor: {declared()[name]}"
    return Version(lowest[0])


def floor_pins() -> list[str]:
    """Every declared dependency at its floor, as pip wants it."""
    return [f"{name}=={floor(name)}" for name in declared()]


def floor_tools_pins() -> list[str]:
    """What proto/generate.py needs, at the floor."""
    return [
        f"grpcio-tools=={floor('grpcio')}",
        f"grpcio=={floor('grpcio')}",
        f"protobuf=={floor('protobuf')}",
        f"googleapis-common-protos=={floor('googleapis-common-protos')}",
    ]


def pythons() -> list[str]:
    """The minor versions of Python that the classifiers declare: `["3.11", …]`."""
    prefix = "Programming Language :: Python :: 3."
    return ["3." + line.removeprefix(prefix) for line in project()["classifiers"] if prefix in line]


def find_python(minor: str) -> str | None:
    """Return a `minor` interpreter of this machine that can make environments, or None."""
    if minor == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    installed = pathlib.Path.home() / ".pyenv/versions"
    candidates = [f"python{minor}", *map(str, sorted(installed.glob(f"{minor}.*/bin/python")))]
    for candidate in candidates:
        try:
            works = subprocess.run(
                [candidate, "-c", "import sys, venv, ensurepip; print(sys.version)"],
                capture_output=True,
                text=True,
                check=False,
            )
        except OSError:
            continue
        if works.returncode == 0 and works.stdout.startswith(minor + "."):
            return candidate
    return None


class Environment:
    """A fresh virtual environment in `folder`."""

    def __init__(self, folder: pathlib.Path, python: str = sys.executable):
        self.python = str(folder / "bin/python")
        run([python, "-m", "venv", str(folder)])

    def install(self, *requirements: str) -> None:
        run([self.python, "-m", "pip", "install", "-qq", *requirements])

    def pip(self, *arguments: str) -> str:
        return run([self.python, "-m", "pip", *arguments])

    def run(self, *arguments: str, env: dict[str, str] | None = None) -> str:
        """Run its interpreter; PYTHONPATH is as in `env` or empty."""
        return run([self.python, *arguments], env=env)

    def process(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run its interpreter, whatever it exits with."""
        return process([self.python, *arguments])


def process(argv: list[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `argv` without this suite's own PYTHON* settings."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONWARNINGS")}
    return subprocess.run(
        argv, capture_output=True, text=True, check=False, env=clean | (env or {}), cwd="/"
    )


def run(argv: list[str], env: dict[str, str] | None = None) -> str:
    """Return what `argv` prints; fail with all it said when it fails."""
    done = process(argv, env)
    assert done.returncode == 0, f"$ {' '.join(argv)}\n{done.stdout[-4000:]}{done.stderr[-8000:]}"
    return done.stdout


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["floor-tools", folder]:
            Environment(pathlib.Path(folder).absolute()).install(*floor_tools_pins())
        case _:
            sys.exit(__doc__)
