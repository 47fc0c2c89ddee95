"""SMG, the Shepherd Model Gateway: a gateway in Rust, of the same descent as SGLang's router."""

from __future__ import annotations

from benchmarks.servers.peers.environments import Made
from benchmarks.servers.peers.gateway import Gateway, Place, version


def argv(made: Made, place: Place) -> list[str]:
    """`smg launch` with the workers' addresses, as its getting-started page has it.

    All else stays at its defaults: policy cache_aware, retries, circuit breaker, health checks,
    metrics, history in memory (which chat completions do not use), no database. The level of
    its log is lowered, which costs nothing per token either way.
    """
    return [
        made.program("smg"),
        "launch",
        *("--worker-urls", place.upstream),
        *("--host", "127.0.0.1"),
        *("--port", str(place.port)),
        *("--prometheus-host", "127.0.0.1"),
        *("--prometheus-port", str(place.metrics_port)),
        *("--log-level", "warn"),
    ]


SERVER = Gateway(
    name="SMG",
    shape=f"{version('smg')} with its defaults, one engine behind it, log at warn",
    environment="smg",
    argv=argv,
    ready_path="/readiness",
)
