"""Envoy's names of its parts, each with the type of its config."""

from __future__ import annotations

from typing import Any

Tree = dict[str, Any]
"""A piece of Envoy's config, as it stands in the YAML."""

TYPES = {
    "envoy.access_loggers.stderr": "extensions.access_loggers.stream.v3.StderrAccessLog",
    "envoy.filters.http.body_size_limit": (
        "extensions.filters.http.body_size_limit.v3.BodySizeLimit"
    ),
    "envoy.filters.http.grpc_json_transcoder": (
        "extensions.filters.http.grpc_json_transcoder.v3.GrpcJsonTranscoder"
    ),
    "envoy.filters.http.header_mutation": (
        "extensions.filters.http.header_mutation.v3.HeaderMutation"
    ),
    "envoy.filters.http.lua": "extensions.filters.http.lua.v3.Lua",
    "envoy.filters.http.router": "extensions.filters.http.router.v3.Router",
    "envoy.filters.listener.tls_inspector": (
        "extensions.filters.listener.tls_inspector.v3.TlsInspector"
    ),
    "envoy.filters.network.http_connection_manager": (
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    ),
    "envoy.resource_monitors.global_downstream_max_connections": (
        "extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig"
    ),
    "envoy.transport_sockets.tls": "extensions.transport_sockets.tls.v3.DownstreamTlsContext",
    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": (
        "extensions.upstreams.http.v3.HttpProtocolOptions"
    ),
}


def typed(type_name: str, **config: Any) -> Tree:
    """Return `config` with the type that Envoy needs to read it."""
    return {"@type": f"type.googleapis.com/envoy.{type_name}", **config}


def extension(name: str, **config: Any) -> Tree:
    """Return the extension called `name` with its config."""
    return {"name": name, "typed_config": typed(TYPES[name], **config)}


def seconds(duration_s: float) -> str:
    """Return a duration as Envoy writes it, to the millisecond."""
    return f"{duration_s:.3f}".rstrip("0").rstrip(".") + "s"


def socket_address(host: str, port: int) -> Tree:
    """Return a TCP address; `host` is an address or localhost, which is 127.0.0.1 here."""
    # Envoy takes addresses only in a listener, not names (field bug G37).
    literal = "127.0.0.1" if host == "localhost" else host
    return {"socket_address": {"address": literal, "port_value": port}}
