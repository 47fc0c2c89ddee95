"""A server that runs, with Envoy before it where it speaks gRPC, and that can be started anew."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.servers import PacedLoad, Running, Server
from benchmarks.servers.envoy import in_front


class Started:
    """One server, started for `load`; fewer streams may be asked of it. It ends with `stack`.

    Raises CannotRun when something is not installed, BenchmarkFailed when it does not start.
    """

    def __init__(self, stack: ExitStack, server: Server, load: PacedLoad, workdir: Path) -> None:
        self.server = server
        self._load = load
        self._workdir = workdir
        self._own = stack.enter_context(ExitStack())
        self.running = self._start()

    def again(self) -> None:
        """End it and start it anew. Raises as the constructor does."""
        self._own.close()
        self.running = self._start()

    def _start(self) -> Running:
        workdir = Path(tempfile.mkdtemp(dir=self._workdir))
        running = self.server.start(self._own, self._load, workdir)
        if running.protocol == "grpc":
            running = in_front(self._own, running, self._load, workdir)
        return running
