"""grpc.aio: what one writes in Python today."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import start
from benchmarks.servers import PacedLoad, Running, grpc_running


@dataclass(frozen=True, slots=True)
class GrpcAio:
    """See grpcaio_server.py for the shape and why it is the best of those that were tried.

    stamps: "", "made" or "handed"; see there.
    own_steps: each stream has a beat of its own.
    """

    name: str = "grpc.aio"
    stamps: str = ""
    own_steps: bool = False
    shape: str = (
        "grpc.aio on uvloop, one process, handlers from the generated code; tokens are already in"
        " its memory and one timer per step wakes all streams, so it reads no engine"
    )

    def start(self, stack: ExitStack, load: PacedLoad, workdir: Path) -> Running:
        address = f"unix:{workdir}/grpcaio.sock"
        argv = [sys.executable, "-m", "benchmarks.servers.peers.grpcaio_server"]
        argv += [address, str(load.tokens_per_s), load.token.hex()]
        argv += [self.stamps, "own" if self.own_steps else "shared"]
        child = start(stack, argv, name="grpcaio", workdir=workdir, ready="ready")
        return grpc_running(address, {"server": child.pid}, load)
