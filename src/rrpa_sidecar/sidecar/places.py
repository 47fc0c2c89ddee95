"""Every address of the daemon: taken before anything else exists, given up together.

With --take-over-timeout an address that another process has is waited for: the sidecar that
drains gives all of them up at once, and its successor has done everything slow by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Self, TypeVar

from rrpa_sidecar.config import Config
from rrpa_sidecar.sidecar import addresses
from rrpa_sidecar.sidecar.addresses import AddressTaken
from rrpa_sidecar.sidecar.unix_sockets import Claim

log = logging.getLogger(__name__)

LOOK_S = 0.01
"""Between two tries to take an address: a part of the time in which nobody answers there."""

SAY_AFTER_S = 1.0
"""After so long it is said what is waited for."""

T = TypeVar("T")


class Stopped(Exception):
    """The process was told to stop while it waited for an address."""


class Places:
    """What the daemon listens on. Release what is taken with `release`."""

    def __init__(self) -> None:
        self.grpc: list[socket.socket] = []
        self.metrics: list[socket.socket] = []
        self._claims: list[Claim] = []

    @classmethod
    async def take(cls, config: Config, stop: asyncio.Event) -> Self:
        """Take all of them; wait for others to give them up as long as `config` allows.

        Raises:
          StartupError: one cannot be had; `AddressTaken` if another process has it.
          Stopped: `stop` was set first.
        """
        patience = _Patience(config.take_over_timeout_s, stop)
        places = cls()
        with contextlib.ExitStack() as undo:
            undo.callback(places.release)
            places.grpc = await patience.have(partial(addresses.bind, config.listen, "--listen"))
            places.metrics = await patience.have(
                partial(addresses.bind, config.metrics_listen, "--metrics-listen")
            )
            for path, flag in (
                (config.engine_socket, "--engine-socket"),
                (config.envoy_socket, "--envoy-socket"),
            ):
                places._claims.append(await patience.have(partial(Claim, path, flag)))
            undo.pop_all()
        return places

    @property
    def engines(self) -> Claim:
        """Where engines attach."""
        return self._claims[0]

    @property
    def envoy(self) -> Claim:
        """Where Envoy calls."""
        return self._claims[1]

    def release(self) -> None:
        """Give all of them up. Idempotent."""
        for bound in (*self.grpc, *self.metrics):
            bound.close()
        for claim in self._claims:
            claim.release()


class _Patience:
    """Waits for addresses: so long for all of them together."""

    def __init__(self, timeout_s: float, stop: asyncio.Event) -> None:
        self._end_s = time.monotonic() + timeout_s
        self._stop = stop

    async def have(self, take: Callable[[], T]) -> T:
        """Return what `take` returns, as soon as nobody has the address any more."""
        say_s = time.monotonic() + SAY_AFTER_S
        while True:
            try:
                return take()
            except AddressTaken as taken:
                now_s = time.monotonic()
                if now_s >= self._end_s:
                    raise
                if now_s >= say_s:
                    log.info("waiting, for %.0f s at most: %s", self._end_s - now_s, taken)
                    say_s = self._end_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._stop.wait()
            if self._stop.is_set():
                raise Stopped
