"""An engine as a process: signals, the line that says it is ready, one-line failures."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from threading import Lock, Thread

from rrpa_sidecar.engine.engine import Engine
from rrpa_sidecar.errors import RRPAError
from rrpa_sidecar.shm.descriptors import use_enough

STOPPING = (signal.SIGTERM, signal.SIGINT)

FILES_PER_JOB = 2
"""Descriptors of an open log: mmap keeps one of its own."""

OWN_FILES = 64
"""Descriptors of everything else: 11 when idle, without a model."""


class StopSignals:
    """Calls back, on a thread of its own, when the process is asked to stop.

    Create it before any other thread: they inherit the mask that keeps the signals for
    `sigwait`. So no Python code is interrupted at a bad moment, and a signal that comes while
    a model loads is kept.
    """

    def __init__(self) -> None:
        self.raised = False
        self._lock = Lock()
        self._callback: Callable[[], None] = lambda: None
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        Thread(target=self._watch, name="rrpa-signals", daemon=True).start()

    def call(self, callback: Callable[[], None]) -> None:
        """Call `callback` once: now, when a signal has come already, or when it comes."""
        with self._lock:
            self._callback = callback
            raised = self.raised
        if raised:
            callback()

    def _watch(self) -> None:
        signal.sigwait(STOPPING)
        with self._lock:
            self.raised = True
            callback = self._callback
        callback()


Loop = Callable[[Engine], None]
"""An engine's own loop; returns once `engine.stopping`."""


def run_process(prepare: Callable[[], tuple[Engine, Loop]]) -> None:
    """Attach, say so, run the loop until SIGTERM or SIGINT, leave nothing behind.

    prepare: loads what is needed and attaches.

    Exits with 1 and one line on stderr when the engine cannot start or is refused.
    """
    signals = StopSignals()
    try:
        engine, loop = prepare()
        signals.call(engine.stop)
        capacity = engine.identity.capacity
        use_enough(
            FILES_PER_JOB * capacity + OWN_FILES,
            f"{capacity} streams (--capacity)",
            "lower --capacity, or start more engines",
        )
        with engine:
            if engine.wait_serving():
                models = ",".join(engine.identity.models)
                print(f"rrpa engine ready name={engine.identity.name} models={models}", flush=True)
            loop(engine)
    except (RRPAError, ValueError) as exc:
        print(f"rrpa: {exc}", file=sys.stderr, flush=True)
        raise SystemExit(1) from exc
