"""The processes of a soak: a sidecar that comes and goes, engines, clients, Envoy if there is."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.plan import BenchmarkFailed, CannotRun
from benchmarks.processes import Child, private_prefix, start
from benchmarks.servers import PacedLoad, Running
from benchmarks.servers.envoy import in_front
from benchmarks.servers.product import flags, rrpa
from benchmarks.soak.client import KINDS

READY, ENGINE_READY = "rrpa ready ", "soak engine ready"
TAKE_OVER_S = 30.0
SETTINGS: dict[str, Any] = {
    "stream_bytes": "1MiB",
    "shm_bytes": "512MiB",
    "queue_limit": 64,
    "drain_timeout": 2,
    "listen_frontend": "grpcio",
    "envoy_frontend": "batched",
    "log_level": "warning",
}
CAPACITY = "24"
LONG, LASTS_S, PACE_S = 0.33, 8.0, 0.04
CLONE_NEWNS = 0x20000
TMPFS_BYTES = 96 * 1024 * 1024


def tmpfs(stack: ExitStack, path: Path) -> bool:
    """Mount a small file system of memory at `path`, which only root may. Returns whether it is.

    It is seen by this process and its children alone, so it goes with the last of them, killed or
    not.
    """
    if ctypes.CDLL(None).unshare(CLONE_NEWNS):
        return False
    private = subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True, check=False)
    if private.returncode:
        return False
    path.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES},mode=0770", "tmpfs", str(path)]
    if subprocess.run(argv, capture_output=True, check=False).returncode:
        path.rmdir()
        return False
    stack.callback(subprocess.run, ["umount", "--lazy", str(path)], check=False)
    return True


def free_ports(count: int) -> list[int]:
    """Return ports that nobody has: a sidecar that comes back needs those that it had.

    Below those that the kernel gives away, or one might be a client's own by then.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: list[int] = []
    for port in random.SystemRandom().sample(range(max(1024, lowest - 8192), lowest), 1000):
        with contextlib.suppress(OSError), socket.create_server(("localhost", port)):
            found.append(port)
        if len(found) == count:
            return found
    raise BenchmarkFailed(f"{count} ports below {lowest} are needed, and all are taken")


@dataclass
class Node:
    """One node. All that it starts ends with `stack`.

    keep_s: how long a stream without a reader goes on, and how long its file stays after its end.
    memory: (monotonic seconds, process id, resident bytes) of the sidecars.
    """

    stack: ExitStack
    workdir: Path
    seed: int
    keep_s: float
    shm: Path = field(init=False)
    own_file_system: bool = field(init=False)
    engines: list[Child] = field(default_factory=list)
    clients: list[Child] = field(default_factory=list)
    memory: list[tuple[float, int, int]] = field(default_factory=list)
    sidecars: int = 0

    def __post_init__(self) -> None:
        self.shm = self.workdir / "shm"
        self.own_file_system = tmpfs(self.stack, self.shm)
        if not self.own_file_system:
            self.shm = Path(tempfile.mkdtemp(prefix=private_prefix(), dir="/dev/shm"))
            self.stack.callback(shutil.rmtree, self.shm, ignore_errors=True)
        self._port, self._metrics_port = free_ports(2)
        self.sidecar = self.start_sidecar()

    # --- The sidecar ----------------------------------------------------------------------

    def start_sidecar(self, *, wait: bool = True, **more: Any) -> Child:
        self.sidecars += 1
        settings = {
            "listen": f"localhost:{self._port}",
            "metrics_listen": f"localhost:{self._metrics_port}",
            "engine_socket": self.workdir / "engine.sock",
            "envoy_socket": self.workdir / "envoy.sock",
            "shm_dir": self.shm,
            "resume_window": self.keep_s,
            "shm_timeout": self.keep_s,
            **SETTINGS,
            **more,
        }
        return start(
            self.stack,
            rrpa("serve", *flags(settings)),
            name=f"serve-{self.sidecars}",
            workdir=self.workdir,
            ready=READY if wait else "",
        )

    def kill_sidecar(self) -> None:
        """SIGKILL, and a new one in its place."""
        kill(self.sidecar)
        self.sidecar = self.start_sidecar()

    def hand_over(self) -> None:
        """A new one waits for the addresses while the old one drains."""
        new = self.start_sidecar(wait=False, take_over_timeout=TAKE_OVER_S)
        os.kill(self.sidecar.pid, signal.SIGTERM)
        new.wait_ready(READY, TAKE_OVER_S)
        old, self.sidecar = self.sidecar, new
        wait_ended(old, TAKE_OVER_S)

    def metrics(self) -> dict[str, float]:
        """Return the sidecar's samples, by name and labels."""
        url = f"http://localhost:{self._metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def sample_memory(self) -> None:
        with contextlib.suppress(OSError):
            pages = int(Path(f"/proc/{self.sidecar.pid}/statm").read_text().split()[1])
            resident = pages * os.sysconf("SC_PAGE_SIZE")
            self.memory.append((time.monotonic(), self.sidecar.pid, resident))

    # --- Engines and clients --------------------------------------------------------------

    def start_engine(self, number: int, *, wait: bool = True) -> None:
        """Start the engine of this number, or start it again."""
        names = (f"engine-{number}-{life}" for life in range(10_000))
        name = next(each for each in names if not self.record(each).exists())
        self.record(name).touch()
        argv = [sys.executable, "-m", "benchmarks.soak.engine", str(self.workdir / "engine.sock")]
        argv += [str(self.shm), str(self.record(name)), f"{self.seed} {name}", CAPACITY]
        ready = ENGINE_READY if wait else ""
        child = start(self.stack, argv, name=name, workdir=self.workdir, ready=ready)
        if number < len(self.engines):
            self.engines[number] = child
        else:
            self.engines.append(child)

    def start_clients(self, doors: dict[str, str], readers: int) -> None:
        """Start a process of clients for each door."""
        for name, target in doors.items():
            record = self.workdir / f"clients-{name}.record"
            argv = [sys.executable, "-m", "benchmarks.soak.client", target, str(record)]
            argv += [str(readers), f"{self.seed} {name}"]
            argv += [str(LONG), str(LASTS_S), str(PACE_S), ",".join(KINDS)]
            child = start(
                self.stack,
                argv,
                name=f"clients-{name}",
                workdir=self.workdir,
                ready="soak client ready",
            )
            self.clients.append(child)

    def doors(self) -> dict[str, str]:
        """Return where clients come in: both front ends, and Envoy if it is installed."""
        found = {
            "grpcio": f"localhost:{self._port}",
            "batched": f"unix:{self.workdir / 'envoy.sock'}",
        }
        running = Running(found["batched"], "grpc", {}, "", b"")
        with contextlib.suppress(CannotRun):
            load = PacedLoad(256, 0)
            found["envoy"] = in_front(self.stack, running, load, self.workdir).address
        return found

    def record(self, name: str) -> Path:
        return self.workdir / f"{name}.record"

    # --- Looking --------------------------------------------------------------------------

    def expect_alive(self) -> None:
        """Raise BenchmarkFailed if a process ended that nobody ended."""
        for child in (self.sidecar, *self.engines, *self.clients):
            child.expect_alive()

    def files(self) -> list[str]:
        """Return the names of all streams' files."""
        names = (path.name for path in self.shm.glob("rrpa_*"))
        return sorted(name for name in names if not name.startswith("rrpa_table_"))


def kill(child: Child) -> None:
    os.kill(child.pid, signal.SIGKILL)
    wait_gone(child, 10)


def wait_gone(child: Child, timeout_s: float) -> None:
    until_s = time.monotonic() + timeout_s
    while child.alive:
        if time.monotonic() > until_s:
            raise BenchmarkFailed(f"{child.name} did not end in {timeout_s:g} s")
        time.sleep(0.005)


def wait_ended(child: Child, timeout_s: float) -> None:
    """Wait for the end of a process that was asked to go; it has to be a good one."""
    wait_gone(child, timeout_s)
    child.expect_ended_well()
