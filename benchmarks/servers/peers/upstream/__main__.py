"""`python -m benchmarks.servers.peers.upstream`: see --help."""

from __future__ import annotations

import asyncio
import signal

import click
import uvloop

from benchmarks.servers.peers.upstream.http1 import Connection
from benchmarks.servers.peers.upstream.pace import Pace


@click.command()
@click.option("--tokens-per-s", type=float, required=True, help="Steps per second.")
@click.option("--token", "tokens", multiple=True, required=True, help="Texts, in turn; repeat it.")
@click.option("--port", type=int, default=0, help="On 127.0.0.1; 0 lets the kernel choose.")
def main(tokens_per_s: float, tokens: tuple[str, ...], port: int) -> None:
    """Answer chat completions as server-sent events until SIGTERM.

    The line `ready 127.0.0.1:PORT` says where. GET /stats counts tokens.
    """
    uvloop.run(_serve(tokens_per_s, tokens, port))


async def _serve(tokens_per_s: float, tokens: tuple[str, ...], port: int) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for sig in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sig, stop.set)
    pace = Pace(loop, tokens_per_s)
    pace.start()
    server = await loop.create_server(
        lambda: Connection(pace, tokens), "127.0.0.1", port, backlog=4096
    )
    host, chosen = server.sockets[0].getsockname()
    print(f"ready {host}:{chosen}", flush=True)
    await stop.wait()
    server.close()


if __name__ == "__main__":
    main()
