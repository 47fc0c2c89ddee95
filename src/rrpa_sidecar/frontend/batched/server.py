"""The batched front end: all its connections, from the first to the end of the drain."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from rrpa_sidecar.clock import Clock
from rrpa_sidecar.config import Config
from rrpa_sidecar.control.broker import Broker
from rrpa_sidecar.frontend.batched.calls import Service
from rrpa_sidecar.frontend.batched.connection import Connection
from rrpa_sidecar.frontend.batched.held import Held
from rrpa_sidecar.frontend.batched.step import Step
from rrpa_sidecar.frontend.batched.turns import Turns
from rrpa_sidecar.frontend.call import Ending
from rrpa_sidecar.frontend.health import Health
from rrpa_sidecar.frontend.limits import streams_limit
from rrpa_sidecar.metrics import Metrics

BACKLOG = 1024
LOOK_S = 0.01
"""Between two looks whether all has ended, on the way out."""


class BatchedServer:
    """Serves RRPAService and grpc.health.v1 on bound sockets, in the running loop."""

    def __init__(
        self, config: Config, broker: Broker, metrics: Metrics, clock: Clock, health: Health
    ) -> None:
        self.service = Service(broker, metrics, clock, health, config.resume_window_s)
        self.connections: set[Connection] = set()
        self.step = Step(self.connections, clock)
        self.streams_limit = streams_limit(config)
        self.request_limit = config.max_request_bytes
        self.held = Held(config.queue_bytes + config.max_request_bytes)
        self.turns = Turns()
        self._listeners: list[asyncio.Server] = []

    async def listen(self, bound: socket.socket) -> None:
        """Take connections on a bound socket, TCP or Unix, which is this server's from now on.

        Raises:
          OSError: another process listens on its address.
        """
        loop = asyncio.get_running_loop()
        at_path = bound.family == socket.AF_UNIX
        create = loop.create_unix_server if at_path else loop.create_server
        self._listeners.append(await create(lambda: Connection(self), sock=bound, backlog=BACKLOG))

    @property
    def open_calls(self) -> int:
        """Calls that have not ended."""
        return sum(each.open_calls for each in self.connections)

    def end_all(self, ending: Ending) -> None:
        """End every open call with `ending`, as soon as its connection takes the status."""
        for each in list(self.connections):
            each.end_all(ending)

    def drain(self) -> None:
        """Take no new connections, nor new calls on those that are there; open calls go on."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        for each in list(self.connections):
            each.drain()

    async def stop(self, grace_s: float) -> None:
        """Take nothing new, let what is open end for `grace_s` at most, and close."""
        self.drain()
        loop = asyncio.get_running_loop()
        end_s = loop.time() + grace_s
        await _until(lambda: all(each.is_idle for each in self.connections), end_s)
        # A peer closes when it has read the GOAWAY; what crosses that is refused as unseen, which
        # clients repeat elsewhere. If we closed first, it would break on the way.
        await _until(lambda: not self.connections, end_s)
        for each in list(self.connections):
            each.close()
        await _until(lambda: not self.connections, end_s)


async def _until(condition: Callable[[], bool], end_s: float) -> None:
    loop = asyncio.get_running_loop()
    while not condition() and loop.time() < end_s:  # noqa: ASYNC110 - once, on the way out
        await asyncio.sleep(LOOK_S)
