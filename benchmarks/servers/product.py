"""The product: a real `rrpa serve` and a real replay engine, each its own process."""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.processes import private_prefix, start
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
        engine_socket, envoy_socket = workdir / "engine.sock", workdir / "envoy.sock"
        room = load.streams * STREAMS_ROOM
        settings = {
            "listen": "localhost:0",
            "metrics_listen": "localhost:0",
            "engine_socket": engine_socket,
            "envoy_socket": envoy_socket,
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
        daemon = start(
            stack,
            rrpa("serve", *flags(settings)),
            name="serve",
            workdir=workdir,
            ready="rrpa ready ",
        )
        text = workdir / "text"
        text.write_bytes(load.token)
        pace = {
            "engine_socket": engine_socket,
            "shm_dir": shm,
            "model": MODEL,
            "capacity": room,
            "text_file": text,
            "bytes_per_token": len(load.token),
            "tokens_per_second": load.tokens_per_s,
            **self.engine,
        }
        engine = start(
            stack,
            rrpa("engine", "replay", *flags(pace)),
            name="engine",
            workdir=workdir,
            ready="rrpa engine ready",
        )
        parts = {"server": daemon.pid, "engine": engine.pid}
        address = _port(daemon.ready_line) if self.tcp else f"unix:{envoy_socket}"
        return grpc_running(address, parts, load)


def _port(ready_line: str) -> str:
    """Return the first address of "rrpa ready grpc=127.0.0.1:4711,[::1]:4711 engines=…"."""
    return ready_line.partition("grpc=")[2].partition(",")[0].partition(" ")[0]
