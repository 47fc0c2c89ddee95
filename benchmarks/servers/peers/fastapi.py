"""FastAPI and uvicorn: server-sent events as people write them by hand.

It is itself the source of its tokens, which lie in memory: nothing stands behind it.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import start
from benchmarks.servers import PacedLoad, Running
from benchmarks.servers.peers.chat import chat_running, tokens, warm
from benchmarks.servers.peers.environments import ENVIRONMENTS, Made
from benchmarks.servers.peers.gateway import environment

APPS = Path(__file__).parent / "apps"
START_TIMEOUT_S = 30.0


def argv(made: Made, unix_socket: Path) -> list[str]:
    """uvicorn's production settings: uvloop, httptools, one worker, no access log.

    On a Unix socket, as its deployment page has it behind a proxy. That is the kind of socket
    on which the product listens too, and 5 % cheaper for it than TCP: 24 µs per token against
    25.5 µs at 256 × 50, two runs each in turn, 2-core x86-64.
    """
    return [
        made.program("uvicorn"),
        *("--app-dir", str(APPS)),
        "fastapi_sse:app",
        *("--uds", str(unix_socket)),
        *("--loop", "uvloop"),
        *("--http", "httptools"),
        *("--log-level", "warning"),
        "--no-access-log",
    ]


@dataclass(frozen=True, slots=True)
class FastApi:
    name = "FastAPI SSE"
    shape = (
        f"{' '.join(ENVIRONMENTS['fastapi'].requirements[:2])}: a StreamingResponse, a queue per"
        " request and json.dumps per token; uvloop, httptools, one worker; tokens in memory"
    )

    def start(self, stack: ExitStack, load: PacedLoad, workdir: Path) -> Running:
        unix_socket = workdir / "fastapi.sock"
        child = start(
            stack,
            argv(environment("fastapi"), unix_socket),
            name="fastapi",
            workdir=workdir,
            ready=unix_socket.exists,
            timeout_s=START_TIMEOUT_S,
            env={
                "TOKENS_PER_S": str(load.tokens_per_s),
                "TOKENS": json.dumps(tokens(load)),
            },
        )
        running = chat_running(f"unix:{unix_socket}", {"server": child.pid}, load)
        warm(self.name, running, load, START_TIMEOUT_S)
        return running


SERVER = FastApi()
