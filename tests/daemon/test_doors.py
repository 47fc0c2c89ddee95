"""Doors of the batched front end: bound early, listened on late."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import pytest

from rrpa_sidecar.clock import SystemClock
from rrpa_sidecar.config import Config
from rrpa_sidecar.errors import StartupError
from rrpa_sidecar.frontend.batched.server import BatchedServer
from rrpa_sidecar.frontend.health import Health
from rrpa_sidecar.metrics import Metrics
from rrpa_sidecar.sidecar import addresses
from rrpa_sidecar.sidecar.doors import BatchedFrontEnd
from tests.frontend.fakes import FakeBroker


def front_end() -> BatchedFrontEnd:
    broker: Any = FakeBroker()
    return BatchedFrontEnd(BatchedServer(Config(), broker, Metrics(), SystemClock(), Health()))


async def test_of_two_that_have_bound_a_port_the_second_to_listen_is_told_who_has_it() -> None:
    """Both binds succeed while neither listens: that is how gRPC shares the port with us."""
    with contextlib.ExitStack() as undo:
        (first,) = addresses.bind("127.0.0.1:0", "--listen")
        undo.callback(first.close)
        port = first.getsockname()[1]
        (second,) = addresses.bind(f"127.0.0.1:{port}", "--listen")
        undo.callback(second.close)
        one, other = front_end(), front_end()
        one.take_port(first, "--listen")
        other.take_port(second, "--listen")
        await one.start()
        with pytest.raises(StartupError) as caught:
            await other.start()
        said = str(caught.value)
        await one.stop(0)
        await other.stop(0)
    assert f"--listen: 127.0.0.1:{port} is taken by pid {os.getpid()} (" in said
