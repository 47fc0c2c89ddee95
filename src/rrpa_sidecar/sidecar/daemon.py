"""The composition root: binds everything, says when it is ready, drains, and leaves nothing.

Order matters in three places. Addresses are taken before anything else exists, so that a second
daemon fails, or waits, without touching the first one's work. `ready` is said when everything
listens. On the way out health says so first, then all doors close, then open streams end.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import time
from collections.abc import Callable

import grpc
import uvloop

from rrpa_sidecar import __version__
from rrpa_sidecar.clock import SystemClock
from rrpa_sidecar.config import Config
from rrpa_sidecar.config_kinds import BELL_SUFFIX, show_size
from rrpa_sidecar.control.attach_service import AttachService, engine_server_options
from rrpa_sidecar.control.broker import Broker
from rrpa_sidecar.control.pump import Pump
from rrpa_sidecar.frontend.batched.server import BatchedServer
from rrpa_sidecar.frontend.call import Ending
from rrpa_sidecar.frontend.grpcio.handlers import RRPAHandlers
from rrpa_sidecar.frontend.grpcio.server import create_server
from rrpa_sidecar.frontend.health import Health
from rrpa_sidecar.metrics import Metrics
from rrpa_sidecar.shm.directory import SegmentDirectory, open_directory
from rrpa_sidecar.shm.doorbell import Bell
from rrpa_sidecar.sidecar import addresses
from rrpa_sidecar.sidecar.doors import BatchedFrontEnd, FrontEnd, GrpcioFrontEnd
from rrpa_sidecar.sidecar.drain import Calls, Signals, drain
from rrpa_sidecar.sidecar.metrics_server import MetricsServer
from rrpa_sidecar.sidecar.open_files import allow_as_many_as_needed
from rrpa_sidecar.sidecar.places import Places, Stopped

log = logging.getLogger(__name__)

COLLECTOR_THRESHOLDS = (5_000, 5, 40)
"""Opening 4,096 streams with Python's own, 700, 10 and 10, and nothing frozen: 661 collections,
0.64 s in all, 0.19 s the longest. A step of 512 tokens leaves nothing behind to be collected."""

STOP_GRACE_S = 0.5
"""How long a last status may take to leave, once every stream has one."""

LOOK_S = 0.01


def run(config: Config, started_s: float) -> None:
    """Run the sidecar until SIGTERM or SIGINT.

    started_s: monotonic moment at which this process began, for the ready line.

    Raises:
      StartupError: an address, a socket, the directory or enough open files cannot be had.
    """
    allow_as_many_as_needed(config)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, started_s))


def _rest_collector() -> None:
    """Keep the garbage collector from walking what lives long: it stops the loop meanwhile."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


async def _serve(config: Config, started_s: float) -> None:
    signals = Signals(asyncio.get_running_loop())
    asyncio.get_running_loop().set_exception_handler(_log_loop_error)
    _rest_collector()  # before the addresses: from there on somebody may wait for us
    async with contextlib.AsyncExitStack() as undo:
        try:
            places = await Places.take(config, signals.stop)
        except Stopped:
            return
        undo.callback(places.release)
        daemon = _Daemon(config, places, undo)
        await daemon.start()
        gc.freeze()
        if not signals.stop.is_set():
            _say_ready(daemon.where(), time.monotonic() - started_s)
        await signals.stop.wait()
        await drain(config, daemon.health, daemon.broker, daemon, daemon.calls, signals.hurry)
    log.info("stopped")


class _Daemon:
    """All parts at their places; `undo` takes them apart again."""

    def __init__(self, config: Config, places: Places, undo: contextlib.AsyncExitStack) -> None:
        self._config = config
        self._places = places
        self._undo = undo
        directory = open_directory(config.shm_dir)
        _warn_of_little_room(directory, config)
        clock = SystemClock()
        self._metrics = Metrics(clock)
        self._bell = Bell(config.engine_socket + BELL_SUFFIX)
        undo.callback(self._bell.close)
        self.broker = Broker(config, directory, self._bell.path, self._metrics, clock)
        self._metrics.gauges = self.broker
        self.health = Health()
        self.broker.on_ready_change = self.health.set_ready
        handlers = RRPAHandlers(self.broker, self._metrics, clock, config.resume_window_s)
        batched = BatchedServer(config, self.broker, self._metrics, clock, self.health)
        self.broker.short_way = batched.step
        self.calls = _Calls(handlers, batched)
        self._fronts: dict[str, FrontEnd] = {
            "grpcio": GrpcioFrontEnd(
                create_server(config, handlers, self.health), lambda: handlers.arrived
            ),
            "batched": BatchedFrontEnd(batched),
        }
        engines = grpc.aio.server(options=engine_server_options(config))
        self._attachments = AttachService(self.broker, config)
        self._attachments.add_to(engines)
        self._engines = GrpcioFrontEnd(engines)
        self._metrics_server = MetricsServer(self._metrics, places.metrics)
        self._pump = Pump(self.broker, self._bell, config.sweep_interval_s)

    async def start(self) -> None:
        """Listen everywhere."""
        self._pump.start()
        self._undo.callback(self._pump.close)
        self._engines.take_path(self._places.engines)
        self._undo.push_async_callback(self._stop)
        self._fronts[self._config.envoy_frontend].take_path(self._places.envoy)
        for bound in self._places.grpc:
            self._fronts[self._config.listen_frontend].take_port(bound, "--listen")
        await self._engines.start()
        for front in self._fronts.values():
            await front.start()
        self._undo.callback(self._metrics_server.close)
        self._metrics_server.start()

    async def close(self) -> None:
        """Close all doors and give their addresses up; what has come in goes on."""
        self._metrics_server.close()
        fronts = (self._engines, *self._fronts.values())
        await asyncio.gather(*(front.drain() for front in fronts))
        self._bell.give_up_path()
        self._places.release()

    async def _stop(self) -> None:
        """Stop all servers; engines last, so that they hear of the streams that were left."""
        self.health.close()
        await asyncio.gather(*(front.stop(STOP_GRACE_S) for front in self._fronts.values()))
        await self._settle()
        await self._engines.stop(None)
        # gRPC's server is done when its calls are; the handlers of these may still be at work.
        await _until(lambda: not self._attachments.open_calls + self.calls.open_calls, LOOK_S)
        await self._settle()

    async def _settle(self) -> None:
        """Give engines a moment to end what they were told to end, so that no file stays."""
        await _until(lambda: not self.broker.unsettled, self._config.sweep_interval_s)

    def where(self) -> str:
        """Return what the ready line says about addresses."""
        return (
            f"grpc={_join(self._places.grpc)} engines={self._config.engine_socket}"
            f" envoy={self._config.envoy_socket} metrics={_join(self._places.metrics)}"
        )


async def _until(condition: Callable[[], bool], look_s: float) -> None:
    """Wait for `condition`, looked at every `look_s`, and not longer than STOP_GRACE_S."""
    for _ in range(int(STOP_GRACE_S / look_s) + 1):
        if condition():
            return
        await asyncio.sleep(look_s)


class _Calls:
    """The calls of both front ends."""

    def __init__(self, *fronts: Calls) -> None:
        self._fronts = fronts

    @property
    def open_calls(self) -> int:
        return sum(front.open_calls for front in self._fronts)

    def end_all(self, ending: Ending) -> None:
        for front in self._fronts:
            front.end_all(ending)


def _warn_of_little_room(directory: SegmentDirectory, config: Config) -> None:
    """A container's /dev/shm has 64 MiB unless somebody says otherwise."""
    total_bytes = directory.space().total_bytes
    if 0 < total_bytes < config.shm_bytes:
        log.warning(
            "%s has %s in all and not the %s of --shm-bytes: %d streams of %s at once, others wait;"
            " make it larger (docker: --shm-size) or lower --stream-bytes",
            *(config.shm_dir, show_size(total_bytes), show_size(config.shm_bytes)),
            *(total_bytes // config.stream_bytes, show_size(config.stream_bytes)),
        )


def _join(bound: list[socket.socket]) -> str:
    return ",".join(str(addresses.address_of(each)) for each in bound)


def _say_ready(where: str, start_s: float) -> None:
    print(f"rrpa ready {where} start_s={start_s:.3f}", flush=True)
    log.info("rrpa-sidecar %s ready %s start_s=%.3f", __version__, where, start_s)


def _log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    error = context.get("exception")
    log.error("event loop: %s", context.get("message"), exc_info=error)  # type: ignore[arg-type]
