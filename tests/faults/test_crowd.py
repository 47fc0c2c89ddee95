"""Many engines attach at once, to a sidecar that is not looking (field-bugs.md G34)."""

from __future__ import annotations

import contextlib
import signal
import time

from rrpa_sidecar.engine import attach
from tests.harness.processes import Daemon, eventually

ENGINES = 100
BLOCKED_S = 0.5


def test_a_crowd_of_engines_attaches_to_a_sidecar_that_stood_still_and_each_once() -> None:
    with Daemon(max_engines=ENGINES) as daemon, contextlib.ExitStack() as attached:
        daemon.signal(signal.SIGSTOP)
        begun_s = time.monotonic()
        engines = [
            attached.enter_context(
                attach(daemon.engine_socket, models=["test"], shm_dir=str(daemon.shm_dir))
            )
            for _ in range(ENGINES)
        ]
        time.sleep(max(0.0, BLOCKED_S - (time.monotonic() - begun_s)))
        daemon.signal(signal.SIGCONT)
        eventually(lambda: all(engine.serving for engine in engines), 20, "all are attached")
        assert daemon.metric("rrpa_engines_attached") == ENGINES
        assert "Traceback" not in daemon.stderr
