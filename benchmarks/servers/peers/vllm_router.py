"""vllm-router: the router in Rust that the vLLM project offers for several engines."""

from __future__ import annotations

from benchmarks.servers.peers.environments import Made
from benchmarks.servers.peers.gateway import Gateway, Place, version


def argv(made: Made, place: Place) -> list[str]:
    """Its README starts it with the workers' addresses; all else stays at its defaults.

    That includes the policy (cache_aware), retries, circuit breaker, health checks and
    metrics, which are what people run it for. The level of its log is lowered: at its default
    it writes lines for each request, none for each token. It has one thread for each core and
    no setting for that.
    """
    return [
        made.program("vllm-router"),
        *("--worker-urls", place.upstream),
        *("--host", "127.0.0.1"),
        *("--port", str(place.port)),
        *("--prometheus-host", "127.0.0.1"),
        *("--prometheus-port", str(place.metrics_port)),
        *("--log-level", "warning"),
    ]


SERVER = Gateway(
    name="vllm-router",
    shape=f"{version('vllm-router')} with its defaults, one engine behind it, log at warning",
    environment="vllm-router",
    argv=argv,
    ready_path="/health",
)
