"""A fake sidecar for each test, in a directory with short paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import rrpa_sidecar.engine.engine as engine_module
from rrpa_sidecar.engine import Engine, attach
from tests.engine.fake_sidecar import FakeSidecar

AttachTo = Callable[..., Engine]


@pytest.fixture
def sidecar(short_dir: Path) -> Iterator[FakeSidecar]:
    with FakeSidecar(short_dir) as fake:
        yield fake


@pytest.fixture
def attach_to(monkeypatch: pytest.MonkeyPatch) -> Iterator[AttachTo]:
    """Attach an engine to a fake sidecar; closed when the test ends.

    The fake removes no logs, so a closing engine does not wait for that.
    """
    monkeypatch.setattr(engine_module, "CLOSE_GRACE_S", 0.05)
    with ExitStack() as opened:

        def begin(to: FakeSidecar, **more: Any) -> Engine:
            settings = {"models": ["m"], "capacity": 4, **more}
            engine = attach(to.socket, shm_dir=str(to.shm_dir), **settings)
            return opened.enter_context(engine)

        yield begin
