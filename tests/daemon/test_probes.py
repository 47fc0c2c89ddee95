"""Probes of a busy, a blocked and a lonely sidecar (G52), and connections that live on (G40)."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rrpa_sidecar.config import Config
from rrpa_sidecar.frontend.grpcio.server import server_options
from rrpa_sidecar.pb import rrpa_pb2_grpc
from tests.conformance.asking import replay
from tests.conformance.callers import collect
from tests.daemon.conftest import hands
from tests.harness.processes import Daemon, ReplayEngine, Stack

LIVE, READY = "", "rrpa.v1.RRPAService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
PROBE_TIMEOUT_S = 1.0
BLOCKED_S = 2.5
STREAMS = 200


def probe(address: str, name: str = LIVE, timeout_s: float = PROBE_TIMEOUT_S) -> str:
    """Ask once on a connection of its own, as kubelet does; return the status, or the code."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(address, options) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            asked = health_pb2.HealthCheckRequest(service=name)
            status = stub.Check(asked, timeout=timeout_s, wait_for_ready=True).status
        except grpc.RpcError as error:
            return str(error.code().name)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(status))


def doors(daemon: Daemon) -> list[str]:
    return [daemon.grpc_address, f"unix:{daemon.envoy_socket}"]


@pytest.fixture(params=["grpcio", "batched"])
def busy(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """A sidecar that streams 10,000 tokens a second."""
    kind = request.param
    chosen = {"listen_frontend": kind, "envoy_frontend": kind, "stream_bytes": "1MiB"}
    with Stack(chosen, engine={"capacity": STREAMS}) as stack:
        yield stack


def test_no_probe_of_a_second_fails_under_load(busy: Stack) -> None:
    daemon = busy.daemon
    request = replay([b"token "], repeat=10_000, between_s=0.02)
    with grpc.insecure_channel(f"unix:{daemon.envoy_socket}") as channel:
        stub = rrpa_pb2_grpc.RRPAServiceStub(channel)
        calls = [stub.CreateStream(request) for _ in range(STREAMS)]
        for call in calls:
            call.initial_metadata()
        found = []
        end_s = time.monotonic() + 2.5
        while time.monotonic() < end_s:
            found += [probe(door, name) for door in doors(daemon) for name in (LIVE, READY)]
            time.sleep(0.05)
        for call in calls:
            call.cancel()
    assert set(found) == {"SERVING"}, found
    assert len(found) >= 20


def blocking() -> Daemon:
    """A daemon whose loop stands still for BLOCKED_S on SIGUSR1."""
    code = (
        "import signal, time\n"
        f"signal.signal(signal.SIGUSR1, lambda *_: time.sleep({BLOCKED_S}))\n"
        "from rrpa_sidecar.cli import main\n"
        "main()\n"
    )
    daemon = Daemon()
    daemon.argv = [sys.executable, "-c", code, *daemon.argv[3:]]
    return daemon


def test_a_blocked_loop_fails_probes_only_while_it_lasts_and_loses_no_stream() -> None:
    """So whoever restarts what fails has to wait longer than a loop may stand still (README)."""
    tokens = [f"{n} ".encode() for n in range(400)]
    with blocking() as daemon, ReplayEngine(daemon, capacity=4):
        with grpc.insecure_channel(f"unix:{daemon.envoy_socket}") as channel:
            call = rrpa_pb2_grpc.RRPAServiceStub(channel).CreateStream(
                replay(tokens, between_s=0.01)
            )
            first = next(call).data
            assert probe(daemon.grpc_address) == "SERVING"
            daemon.signal(signal.SIGUSR1)
            time.sleep(0.2)
            patient: list[str] = []
            waiting = threading.Thread(
                target=lambda: patient.append(probe(daemon.grpc_address, LIVE, BLOCKED_S + 3))
            )
            waiting.start()
            assert probe(daemon.grpc_address) == "DEADLINE_EXCEEDED"
            waiting.join()
            assert patient == ["SERVING"]
            assert probe(daemon.grpc_address, READY) == "SERVING", "its engine is still attached"
            assert first + collect(call).data == b"".join(tokens)
        assert "Traceback" not in daemon.stderr


def test_without_an_engine_it_is_alive_and_not_ready() -> None:
    with Daemon() as daemon:
        for door in doors(daemon):
            assert (probe(door), probe(door, READY)) == ("SERVING", "NOT_SERVING")
        with hands(daemon):
            assert probe(daemon.grpc_address, READY) == "SERVING"


def test_no_connection_is_recycled_for_its_age_so_no_stream_is_cut_by_that() -> None:
    """gRPC's max_connection_age ends streams that outlive its grace; nothing here sets one."""
    names = {name for name, _ in server_options(Config())}
    assert not {name for name in names if "connection_age" in name or "connection_idle" in name}
