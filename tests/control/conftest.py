"""A broker with real shared memory, a clock that jumps, and engines that live in the test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator

import pytest

from rrpa_sidecar.config import Config
from rrpa_sidecar.control.broker import Broker
from rrpa_sidecar.metrics import Metrics
from rrpa_sidecar.shm.directory import PlainDirectory
from tests.control.engine import STREAM_BYTES, Cast, FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def shm() -> Iterator[PlainDirectory]:
    path = tempfile.mkdtemp(dir="/dev/shm", prefix="rrpa-test-")
    yield PlainDirectory(path)
    shutil.rmtree(path)


@pytest.fixture
def config(shm) -> Config:
    """Room for 8 streams and 4 waiting requests."""
    return Config(
        shm_dir=shm.path, stream_bytes=STREAM_BYTES, shm_bytes=8 * STREAM_BYTES, queue_limit=4
    )


@pytest.fixture
def metrics(clock) -> Metrics:
    return Metrics(clock)


@pytest.fixture
def broker(config, shm, metrics, clock) -> Broker:
    return Broker(config, shm, "/tmp/bell", metrics, clock)


@pytest.fixture
def cast(broker, shm, clock) -> Iterator[Cast]:
    """Makes engines and requests; closes what is still open."""
    made = Cast(broker, shm, clock)
    yield made
    made.close()
