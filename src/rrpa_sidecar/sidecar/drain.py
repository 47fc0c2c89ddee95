"""Going away in order: not ready → still serving → doors closed → streams ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from typing import Protocol

from rrpa_sidecar.config import Config
from rrpa_sidecar.errors import Draining
from rrpa_sidecar.frontend.call import Ending

log = logging.getLogger(__name__)

LOOK_S = 0.05


class Signals:
    """SIGTERM and SIGINT as events.

    `stop`: go, in order. `hurry`: a second SIGINT, from somebody at a terminal who will not wait.
    A second SIGTERM changes nothing: supervisors repeat themselves.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, self.stop.set)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)

    def _interrupt(self) -> None:
        (self.hurry if self.stop.is_set() else self.stop).set()


class Readiness(Protocol):
    """Where load balancers look."""

    def leave(self) -> None: ...


class Intake(Protocol):
    """Where new streams come in, and engines."""

    def drain(self) -> None: ...

    def send_engines_on(self) -> None: ...


class Doors(Protocol):
    """Where everybody comes in."""

    async def close(self) -> None: ...


class Calls(Protocol):
    """The calls of a front end."""

    @property
    def open_calls(self) -> int: ...

    def end_all(self, ending: Ending) -> None: ...


async def drain(
    config: Config,
    health: Readiness,
    intake: Intake,
    doors: Doors,
    calls: Calls,
    hurry: asyncio.Event,
) -> None:
    """Take no new work, let open streams finish, end those that do not.

    Takes at most `drain_delay_s + drain_timeout_s`, and a second in which calls still come in that
    were there before; less when nothing is open or `hurry` is set.
    The doors close after the delay, all at once: a successor may listen there from then on.
    Engines hear of it after that, and attach to the successor; what they do for us goes on.
    """
    health.leave()
    log.info("draining: %d streams open", calls.open_calls)
    await _wait(hurry, config.drain_delay_s)
    await doors.close()
    intake.drain()  # not before: what came in first shall not be refused by us
    intake.send_engines_on()
    loop = asyncio.get_running_loop()
    end_s = loop.time() + config.drain_timeout_s
    while calls.open_calls and loop.time() < end_s and not hurry.is_set():
        await _wait(hurry, min(LOOK_S, max(end_s - loop.time(), 0)))
    if not calls.open_calls:
        return
    log.warning(
        "drain timeout of %g s passed: %d streams end unfinished",
        config.drain_timeout_s,
        calls.open_calls,
    )
    calls.end_all(_ending(config.drain_timeout_s))


def _ending(drain_timeout_s: float) -> Ending:
    def stopped(offset: int, resumable: bool) -> Draining:
        remedy = "resume it from there" if resumable else "try again only if you had none"
        return Draining(
            f"the sidecar stopped after {offset} bytes of this stream, which did not end within"
            f" --drain-timeout {drain_timeout_s:g} s; {remedy}"
        )

    return stopped


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
