"""The cluster: one sidecar behind its Unix socket."""

from __future__ import annotations

from rrpa_sidecar.config import Config
from rrpa_sidecar.edge.descriptors import SERVICE
from rrpa_sidecar.edge.extensions import TYPES, Tree, seconds, typed

CLUSTER = "sidecar"

# A Unix socket answers a connect at once or not at all; the SDK gives 0.5 s as well.
CONNECT_TIMEOUT_S = 0.5

REFUSAL_ROOM = 4096
"""Calls that Envoy carries beyond what the sidecar can run and queue.

The sidecar refuses those itself, with RESOURCE_EXHAUSTED and the limit's size. They need room in
Envoy for the moment that takes, or a burst meets Envoy's breaker and gets a bare "overflow"
(field bug G48: 1,024 by default).
"""

STREAM_WINDOW_BYTES = 64 * 1024
"""What one stream may have under way. It bounds what a stalled client costs Envoy, twice: once
towards the sidecar and once towards the client. 64 KiB is HTTP/2's own default; a token is
about 5 bytes."""

CONNECTION_WINDOW_LIMIT_BYTES = 2**31 - 1

UNHEALTHY_AFTER = 3
HEALTHY_AFTER = 2

# 50 is Envoy's default, chosen here on purpose. One sidecar that says NOT_SERVING is "100 % of
# hosts unhealthy", above the threshold: calls still go to it. That is wanted: it refuses with
# its own sentence (no engine yet, draining), and serves again the moment an engine attaches,
# not 2 checks of 10 s later. With several sidecars in the cluster fewer than half of them can be
# avoided, more cannot. Field bug G45.
PANIC_THRESHOLD_PERCENT = 50.0


def max_calls(config: Config) -> int:
    """Return how many calls Envoy carries at once before it refuses one itself.

    Beside the calls that run or wait as many may read resumed streams.
    """
    return 2 * config.max_open_calls + REFUSAL_ROOM


def cluster(config: Config) -> Tree:
    """Return the cluster of the sidecar that `config` describes."""
    return {
        "name": CLUSTER,
        "type": "STATIC",
        "connect_timeout": seconds(CONNECT_TIMEOUT_S),
        "load_assignment": {
            "cluster_name": CLUSTER,
            "endpoints": [{"lb_endpoints": [{"endpoint": _endpoint(config)}]}],
        },
        "typed_extension_protocol_options": _http2(config),
        "per_connection_buffer_limit_bytes": 1024 * 1024,
        "circuit_breakers": {"thresholds": [_breaker(config)]},
        "common_lb_config": {"healthy_panic_threshold": {"value": PANIC_THRESHOLD_PERCENT}},
        # A failed check says something about new calls; running streams decide for themselves.
        "close_connections_on_host_health_failure": False,
        "health_checks": [_health_check(config)],
    }


def _endpoint(config: Config) -> Tree:
    return {"address": {"pipe": {"path": config.envoy_socket}}}


def _http2(config: Config) -> Tree:
    # Without this Envoy speaks HTTP/1.1 to the sidecar and every call ends as UPE (G46).
    # No keepalive pings: on a Unix socket the kernel reports a dead peer at once (G35).
    # The connection's window holds every stream's: a stalled one cannot stop the others.
    window = min((max_calls(config)) * STREAM_WINDOW_BYTES, CONNECTION_WINDOW_LIMIT_BYTES)
    name = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    options = {
        "initial_stream_window_size": STREAM_WINDOW_BYTES,
        "initial_connection_window_size": window,
    }
    return {
        name: typed(TYPES[name], explicit_http_config={"http2_protocol_options": options}),
    }


def _breaker(config: Config) -> Tree:
    calls = max_calls(config)
    return {
        "max_connections": 1024,
        "max_pending_requests": calls,
        "max_requests": calls,
        "max_retries": 16,
        "track_remaining": True,
    }


def _health_check(config: Config) -> Tree:
    interval = seconds(config.envoy_health_interval_s)
    return {
        "timeout": seconds(config.envoy_health_timeout_s),
        "interval": interval,
        # 60 s by default while nobody calls: the first caller after a quiet hour would
        # meet knowledge that is a minute old.
        "no_traffic_interval": interval,
        "unhealthy_threshold": UNHEALTHY_AFTER,
        "healthy_threshold": HEALTHY_AFTER,
        "grpc_health_check": {"service_name": SERVICE},
    }
