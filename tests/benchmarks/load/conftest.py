"""The load client, and servers that answer it as a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.load.client import Load, run
from tests.benchmarks.load.scripted import Answer, ScriptedServer, serve_http1, serve_http2

QUICK = {"warm_s": 0.0, "seconds": 5.0, "ready_timeout_s": 5.0, "until_ended": True}
"""A window that ends with the last answer; the seconds are only for a client that hangs."""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def ask(short_dir: Path, stack: ExitStack, program: Path) -> Callable[..., dict[str, Any]]:
    """Return a function: the client's report of a load on a server that gives `answer`."""

    def asked(answer: Answer, **options: Any) -> dict[str, Any]:
        serve = serve_http1 if options.get("protocol") == "sse" else serve_http2
        server = stack.enter_context(ScriptedServer(short_dir / "server", serve, answer))
        load = Load(**{"connect": server.address, "body": b"\0" * 5, **QUICK, **options})
        return run(load, short_dir)

    return asked
