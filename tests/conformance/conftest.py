"""One running product for the whole folder, and each way into it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.callers import GRPC_ROWS, ROWS, Caller, GrpcCaller
from tests.harness.processes import Stack

MIB = 1024 * 1024


FRONT_ENDS = ("grpcio", "batched")
DOORS = {name: (name, name) for name in FRONT_ENDS} | {"shipped": ("grpcio", "batched")}
"""Name of a stack → front ends at --listen and at Envoy's socket. `shipped` is for tests that wait
so long that they do it once: with both front ends, each where it is by default."""

once_with_both = pytest.mark.parametrize("stack", ["shipped"], indirect=True, scope="session")


@pytest.fixture(scope="session", params=FRONT_ENDS)
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """Sidecar with each front end at both its doors, an engine for 256 streams, and Envoy."""
    listen, envoy = DOORS[request.param]
    daemon = {
        "shm_bytes": 1024 * MIB,
        "stream_bytes": MIB,
        "log_level": "debug",
        "listen_frontend": listen,
        "envoy_frontend": envoy,
    }
    with Stack(daemon, engine={"capacity": 256}, envoy=True) as running:
        yield running


@pytest.fixture(scope="session", params=list(ROWS))
def caller(request: pytest.FixtureRequest, stack: Stack) -> Iterator[Caller]:
    """Each way in, HTTP included."""
    made = ROWS[request.param](stack)
    yield made
    made.close()


@pytest.fixture(scope="session", params=GRPC_ROWS)
def grpc_caller(request: pytest.FixtureRequest, stack: Stack) -> Iterator[GrpcCaller]:
    """Each way in that speaks gRPC, so frames, offsets and codes can be seen."""
    made = ROWS[request.param](stack)
    assert isinstance(made, GrpcCaller)
    yield made
    made.close()


@pytest.fixture(scope="session")
def all_callers(stack: Stack) -> Iterator[list[Caller]]:
    """All ways in, for tests that wait long and so wait for all at once."""
    made = [row(stack) for row in ROWS.values()]
    yield made
    for each in made:
        each.close()


@pytest.fixture(autouse=True)
def at_rest_after_each_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """No stream, file or slot outlives a test (field-bugs.md G57)."""
    yield
    if "stack" in request.fixturenames:
        running: Stack = request.getfixturevalue("stack")
        expect_rest(running)


def expect_rest(running: Stack) -> None:
    from tests.harness.processes import eventually

    eventually(
        lambda: running.daemon.metric("rrpa_active_streams") == 0,
        what="no stream is active",
    )
    eventually(lambda: not running.daemon.segments(), what="no stream's file is left")
