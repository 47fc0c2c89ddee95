"""The product: a real `rrpa serve` and a real replay engine, each its own process."""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.processes import Child, private_prefix, start
from benchmarks.servers import MODEL, PacedLoad, Running, grpc_running

STREAM_BYTES = 256 * 1024
"""Room for an answer; the files are sparse, so this costs address space alone."""

# Streams of the round before go while new ones come.
STREAMS_ROOM = 2


def rrpa(*argv: str) -> list[str]:
    return [sys.executable, "-m", "rrpa_sidecar", *argv]


def flags(settings: dict[str, Any]) -> list[str]:
    """Return {"shm_bytes": 5, "stamp": True} as --shm-bytes 5 --stamp."""
    words = []
    for name, value in settings.items():
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(str(value))
    return words


@dataclass(slots=True)
class Product:
    """frontend: "batched" or "grpcio", what listens on the socket that Envoy uses.

    tcp: callers come to the TCP port instead, where the same front end listens.
    serve, engine: further settings of `rrpa serve` and flags of `rrpa engine replay`.
    """

    frontend: str = "batched"
    tcp: bool = False
    serve: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"rrpa {self.frontend}{', TCP' if self.tcp else ''}"

    shape = (
        "rrpa serve with all features on; tokens come through shared memory from an engine in a"
        " process of its own, whose CPU is the row's engine"
    )

    def start(self, stack: ExitStack, load: PacedLoad, workdir: Path) -> Running:
        shm = tempfile.mkdtemp(prefix=private_prefix(), dir="/dev/shm")
        stack.callback(shutil.rmtree, shm, ignore_errors=True)
        daemon = self.start_sidecar(stack, load, workdir, Path(shm))
        engine = self.start_engine(stack, load, workdir, Path(shm))
        running = self.running(load, workdir, {"server": daemon.pid, "engine": engine.pid})
        return replace(running, address=_port(daemon.ready_line)) if self.tcp else running

    def start_sidecar(
        self, stack: ExitStack, load: PacedLoad, workdir: Path, shm: Path, **start_options: Any
    ) -> Child:
        """Start `rrpa serve` with its sockets in `workdir` and its logs in `shm`."""
        room = load.streams * STREAMS_ROOM
        settings = {
            "listen": "localhost:0",
            "metrics_listen": "localhost:0",
            "engine_socket": workdir / "engine.sock",
            "envoy_socket": workdir / "envoy.sock",
            "envoy_frontend": self.frontend,
            "listen_frontend": self.frontend,
            "shm_dir": shm,
            "stream_bytes": STREAM_BYTES,
            "shm_bytes": room * STREAM_BYTES,
            "queue_limit": room,
            "drain_timeout": 0,
            "log_level": "warning",
            **self.serve,
        }
        options = {"name": "serve", "workdir": workdir, "ready": "rrpa ready ", **start_options}
        return start(stack, rrpa("serve", *flags(settings)), **options)

    def start_engine(
        self, stack: ExitStack, load: PacedLoad, workdir: Path, shm: Path, name: str = "engine"
    ) -> Child:
        """Start a replay engine that attaches to the sidecar of `workdir`."""
        text = workdir / "text"
        text.write_bytes(load.token)
        pace = {
            "engine_socket": workdir / "engine.sock",
            "shm_dir": shm,
            "model": MODEL,
            "capacity": load.streams * STREAMS_ROOM,
            "text_file": text,
            "bytes_per_token": len(load.token),
            "tokens_per_second": load.tokens_per_s,
            **self.engine,
        }
        argv = rrpa("engine", "replay", *flags(pace))
        return start(stack, argv, name=name, workdir=workdir, ready="rrpa engine ready")

    def running(self, load: PacedLoad, workdir: Path, parts: dict[str, int]) -> Running:
        """Return how the sidecar of `workdir` is asked."""
        return grpc_running(f"unix:{workdir / 'envoy.sock'}", parts, load)


def _port(ready_line: str) -> str:
    """Return the first address of "rrpa ready grpc=127.0.0.1:4711,[::1]:4711 engines=…"."""
    return ready_line.partition("grpc=")[2].partition(",")[0].partition(" ")[0]
