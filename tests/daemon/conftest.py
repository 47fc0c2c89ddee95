"""A daemon for each module, and an engine in the test's own hands."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from rrpa_sidecar.engine import Engine, Job, attach
from rrpa_sidecar.pb import rrpa_pb2 as pb
from tests.harness.processes import Daemon, eventually

STREAM = "/rrpa.v1.RRPAService/CreateStream"
REQUEST = pb.CreateStreamRequest(model="test", prompt="hi").SerializeToString()


class Hands:
    """An attached engine whose jobs the test itself serves, and a client."""

    def __init__(self, daemon: Daemon, engine: Engine, channel: grpc.Channel):
        self.daemon = daemon
        self.engine = engine
        self.channel = channel
        self._call = channel.unary_stream(STREAM, None, pb.CreateStreamResponse.FromString)

    def call(self, request: bytes = REQUEST, **kwargs: Any) -> Any:
        return self._call(request, **kwargs)

    def job(self, timeout_s: float = 5.0) -> Job:
        """Return the next job."""
        found: list[Job] = []

        def take() -> bool:
            found.extend(self.engine.poll())
            return bool(found)

        eventually(take, timeout_s, what="a job came")
        (job,) = found
        return job

    def answer(self, text: bytes = b"answer") -> bytes:
        """Make one whole call; return what the client got."""
        call = self.call()
        job = self.job()
        job.write(text)
        job.finish("stop")
        return b"".join(frame.data for frame in call)


@contextlib.contextmanager
def hands(daemon: Daemon, **engine: Any) -> Iterator[Hands]:
    """Attach an engine to `daemon` and open a channel."""
    settings = {"models": ["test"], "capacity": 4, "shm_dir": str(daemon.shm_dir), **engine}
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    with (
        attach(daemon.engine_socket, **settings) as attached,
        grpc.insecure_channel(daemon.grpc_address, options=options) as channel,
    ):
        eventually(lambda: attached.serving, what="the engine is attached")
        yield Hands(daemon, attached, channel)


def impatient(options: dict[str, int]) -> Daemon:
    """A daemon with other times of gRPC's keepalive. What is not set at all stays unset."""
    code = (
        "from rrpa_sidecar.cli import main\n"
        "from rrpa_sidecar.frontend.grpcio import server\n"
        f"server.KEEPALIVE = tuple((k, {options}.get(k, v)) for k, v in server.KEEPALIVE)\n"
        "main()\n"
    )
    daemon = Daemon()
    daemon.argv = [sys.executable, "-c", code, *daemon.argv[3:]]
    return daemon


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon() as running:
        yield running


@pytest.fixture
def served(daemon: Daemon) -> Iterator[Hands]:
    with hands(daemon) as held:
        yield held
