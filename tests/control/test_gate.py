"""What keeps a request out although an engine would have it: the sidecar's own memory."""

from __future__ import annotations

import pytest

from rrpa_sidecar.control import gate
from rrpa_sidecar.control.broker import Broker
from rrpa_sidecar.errors import CapacityExhausted
from rrpa_sidecar.shm.memory import FRESH_NS, Memory
from rrpa_sidecar.status import status_of
from tests.control.engine import Cast, read_all
from tests.shm.test_memory import LIMIT, RESERVE, FakeGroup


def test_request_that_would_break_the_sidecars_memory_limit_is_refused_with_the_numbers(
    config, shm, metrics, clock, tmp_path, monkeypatch
):
    fake = FakeGroup(tmp_path / "group")
    memory = Memory([fake.group], clock)
    monkeypatch.setattr(gate, "own_memory", lambda: memory)
    broker = Broker(config, shm, "/tmp/bell", metrics, clock)
    cast = Cast(broker, shm, clock)
    engine = cast.engine()
    running = cast.open()
    fake.set(LIMIT, LIMIT - RESERVE - gate.CALL_BYTES)
    clock.now += FRESH_NS
    with pytest.raises(CapacityExhausted, match="sidecar is short of memory") as caught:
        cast.open()
    text = status_of(caught.value)[1]
    assert str(LIMIT) in text
    assert text.endswith("streams run"), "the advice is not cut off"
    engine.finish(running)  # those that run go on
    assert read_all(running)[1] is not None
    fake.set(LIMIT, LIMIT - RESERVE - gate.CALL_BYTES - 64)
    assert cast.open(prompt="x").stream_id
    with pytest.raises(CapacityExhausted):
        cast.open(prompt="x" * 100)  # its size counts
    cast.close()
