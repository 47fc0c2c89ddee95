"""Gateways: they stand between callers and an engine, and pass server-sent events on.

Each runs in an environment of its own before the same upstream, which stands for the engine and
whose CPU is reported apart. What is measured is one gateway with one engine behind it.
"""

from __future__ import annotations

import socket
import sys
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.plan import CannotRun
from benchmarks.processes import Child, start
from benchmarks.servers import PacedLoad, Running
from benchmarks.servers.peers.chat import chat_running, tokens, warm
from benchmarks.servers.peers.environments import ENVIRONMENTS, Made, NotInstalled, ensure

START_TIMEOUT_S = 90.0
"""LiteLLM imports for 6 s on an idle machine."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a gateway listens, on 127.0.0.1, and what it stands before."""

    upstream: str
    port: int
    metrics_port: int
    workdir: Path


@dataclass(frozen=True, slots=True)
class Gateway:
    """name: as tables show it. shape: see Server.

    environment: its row in environments.py.
    argv: how its command line is made.
    ready_path: a page that answers 200 when it is ready for requests.
    """

    name: str
    shape: str
    environment: str
    argv: Callable[[Made, Place], list[str]]
    ready_path: str
    env: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def start(self, stack: ExitStack, load: PacedLoad, workdir: Path) -> Running:
        made = environment(self.environment)
        upstream = start_upstream(stack, load, workdir)
        address = upstream.ready_line.split()[1]
        place = Place(f"http://{address}", free_port(), free_port(), workdir)
        page = f"http://127.0.0.1:{place.port}{self.ready_path}"
        gateway = start(
            stack,
            self.argv(made, place),
            name=self.environment,
            workdir=workdir,
            ready=lambda: answers(page),
            timeout_s=START_TIMEOUT_S,
            env=self.env,
        )
        parts = {"server": gateway.pid, "upstream": upstream.pid}
        running = chat_running(f"127.0.0.1:{place.port}", parts, load, dict(self.headers))
        warm(self.name, running, load, START_TIMEOUT_S)
        return running


def environment(name: str) -> Made:
    """Return a peer's environment, made now if need be; progress goes to stderr.

    Raises CannotRun when it cannot be had.
    """
    try:
        return ensure(name, say=lambda line: print(line, file=sys.stderr, flush=True))
    except NotInstalled as exc:
        raise CannotRun(f"not installed: {exc}") from exc


def version(name: str) -> str:
    """Return the first requirement of a peer, as `smg 1.13.0`."""
    return ENVIRONMENTS[name].requirements[0].replace("==", " ")


def start_upstream(stack: ExitStack, load: PacedLoad, workdir: Path) -> Child:
    argv = [sys.executable, "-m", "benchmarks.servers.peers.upstream"]
    argv += ["--tokens-per-s", str(load.tokens_per_s)]
    argv += [f"--token={text}" for text in tokens(load)]
    return start(stack, argv, name="upstream", workdir=workdir, ready="ready ")


def free_port() -> int:
    """Return a port that was free a moment ago, for programs that cannot choose one."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def answers(url: str) -> bool:
    """Return whether GET gives 200 now."""
    try:
        with urllib.request.urlopen(url, timeout=2) as page:
            return bool(page.status == 200)
    except OSError:
        return False
