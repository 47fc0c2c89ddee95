"""Where callers come in, and what answers there: any front end at any door.

A front end takes its doors before it starts; `FrontEnd` is what the daemon needs of it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import Protocol

import grpc

from rrpa_sidecar.frontend.batched.server import BatchedServer
from rrpa_sidecar.sidecar import addresses
from rrpa_sidecar.sidecar.unix_sockets import Claim

log = logging.getLogger(__name__)

FOR_EVER_S = 1e6
"""gRPC's server ends what is open after a time, None being none at all; `stop` says when."""

UNBIND_S = 1.0
"""How long gRPC may take to remove the path of a socket; 2 ms is usual."""

LOOK_S = 0.001

QUIET_S, TAKE_IN_S = 0.1, 1.0
"""No call came for so long: none waits in gRPC's core. Under load one always may, hence the end."""


class FrontEnd(Protocol):
    """A server that has not started."""

    def take_port(self, bound: socket.socket, flag: str) -> None:
        """Serve where `bound` holds the port.

        Raises:
          StartupError: somebody else listens there.
        """
        ...

    def take_path(self, claim: Claim) -> None:
        """Serve on the Unix socket that is claimed."""
        ...

    async def start(self) -> None:
        """Listen at all doors.

        Raises:
          StartupError: somebody else listens at one.
        """
        ...

    async def drain(self) -> None:
        """Take no new connections and no new calls, and say so (GOAWAY); open calls go on.

        When this returns the doors' addresses are free. Call it once, or not at all.
        """
        ...

    async def stop(self, grace_s: float) -> None:
        """Take nothing new; end what is open after `grace_s`."""
        ...


class GrpcioFrontEnd:
    """gRPC's own server, which binds by itself.

    arrived: how many calls its handlers have got so far; None: a call that is lost is no matter.
    """

    def __init__(self, server: grpc.aio.Server, arrived: Callable[[], int] | None = None) -> None:
        self._server = server
        self._arrived = arrived
        self._paths: list[str] = []
        self._stopping: asyncio.Task[None] | None = None

    def take_port(self, bound: socket.socket, flag: str) -> None:
        where = addresses.address_of(bound)
        try:
            self._server.add_insecure_port(str(where))
        except RuntimeError as error:
            raise addresses.taken(where, flag) from error

    def take_path(self, claim: Claim) -> None:
        self._paths.append(claim.path)
        with claim.binding():
            self._server.add_insecure_port(f"unix:{claim.path}")

    async def start(self) -> None:
        await self._server.start()

    async def drain(self) -> None:
        await self._take_in()
        # GOAWAY and the end of listening come at once, the rest when no call is open any more. A
        # call that crosses the GOAWAY on the wire ends with CANCELLED: gRPC's core (1.85) drops
        # what it has not handed to us yet. The batched front end refuses such a call as unseen.
        self._stopping = asyncio.create_task(self._server.stop(FOR_EVER_S))
        # gRPC removes the path by its name: only after that may another bind there.
        try:
            async with asyncio.timeout(UNBIND_S):
                while any(map(os.path.exists, self._paths)):  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            log.warning("gRPC still listens on %s; it stays ours", ", ".join(self._paths))

    async def _take_in(self) -> None:
        """Let the calls come in that gRPC's core holds: it hands them over one after the other.

        After a moment in which we stood still, or others had the machine, they may be many.
        """
        if self._arrived is None:
            return
        loop = asyncio.get_running_loop()
        end_s = loop.time() + TAKE_IN_S
        seen = -1
        while (now := self._arrived()) != seen and loop.time() < end_s:
            seen = now
            await asyncio.sleep(QUIET_S)

    async def stop(self, grace_s: float | None) -> None:
        await self._server.stop(grace_s)
        if self._stopping is not None:
            await self._stopping


class BatchedFrontEnd:
    """Our own server, which listens on sockets that are bound already."""

    def __init__(self, server: BatchedServer) -> None:
        self._server = server
        self._ports: list[tuple[socket.socket, str]] = []
        self._paths: list[socket.socket] = []

    def take_port(self, bound: socket.socket, flag: str) -> None:
        self._ports.append((bound, flag))

    def take_path(self, claim: Claim) -> None:
        bound = socket.socket(socket.AF_UNIX)
        self._paths.append(bound)
        with claim.binding():
            bound.bind(claim.path)

    async def start(self) -> None:
        for bound in self._paths:
            await self._server.listen(bound)
        for bound, flag in self._ports:
            try:
                await self._server.listen(bound)
            except OSError as error:
                # Two may bind a port that nobody listens on; the second to listen is told so.
                raise addresses.refusal(addresses.address_of(bound), flag, error) from error

    async def drain(self) -> None:
        self._server.drain()

    async def stop(self, grace_s: float) -> None:
        await self._server.stop(grace_s)
        for bound in self._paths:
            bound.close()
