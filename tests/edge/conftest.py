"""One stand-in sidecar and one Envoy for each module."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from rrpa_sidecar.pb.rrpa_pb2_grpc import RRPAServiceStub
from tests.edge.support import Edge, FakeSidecar

MAX_REQUEST_BYTES = 1024 * 1024


@pytest.fixture(scope="module")
def sidecar() -> Iterator[FakeSidecar]:
    with FakeSidecar(max_request_bytes=MAX_REQUEST_BYTES) as running:
        yield running


@pytest.fixture(scope="module")
def edge(sidecar: FakeSidecar) -> Iterator[Edge]:
    with Edge(sidecar) as running:
        yield running  # type: ignore[misc]


@pytest.fixture(scope="module")
def stub(edge: Edge) -> Iterator[RRPAServiceStub]:
    with edge.channel() as channel:
        grpc.channel_ready_future(channel).result(10)
        yield RRPAServiceStub(channel)
