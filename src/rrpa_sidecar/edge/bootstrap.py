"""Envoy's whole config as one tree, put together from the sidecar's settings."""

from __future__ import annotations

from dataclasses import dataclass

from rrpa_sidecar.config import Config
from rrpa_sidecar.config_kinds import split_address
from rrpa_sidecar.edge.extensions import Tree, extension, socket_address
from rrpa_sidecar.edge.http import http1_manager, http2_manager
from rrpa_sidecar.edge.upstream import cluster

LISTENER = "edge"

MAX_CONNECTIONS = 4096
"""Client connections at once; one more is closed on arrival. Envoy warns if this is not set."""

# Bytes read ahead or not yet written for one connection before Envoy stops reading the other
# side: with HTTP/2's windows the bound of what one client can cost.
CONNECTION_BUFFER_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Files:
    """Paths of what the config names, as Envoy shall open them."""

    descriptors: str
    certificate: str
    key: str
    client_ca: str = ""


def bootstrap(config: Config, files: Files) -> Tree:
    """Return Envoy's config.

    The sockets, the request limit and the breakers are `config`'s own, so the two sides cannot
    disagree.
    """
    admin_host, admin_port = split_address(config.envoy_admin)
    monitor = extension(
        "envoy.resource_monitors.global_downstream_max_connections",
        max_active_downstream_connections=MAX_CONNECTIONS,
    )
    return {
        "admin": {"address": socket_address(admin_host, admin_port)},
        "static_resources": {
            "listeners": [_listener(config, files)],
            "clusters": [cluster(config)],
        },
        "overload_manager": {"resource_monitors": [monitor]},
    }


def _listener(config: Config, files: Files) -> Tree:
    host, port = split_address(config.envoy_listen)
    return {
        "name": LISTENER,
        "address": socket_address(host, port),
        "per_connection_buffer_limit_bytes": CONNECTION_BUFFER_BYTES,
        "listener_filters": [extension("envoy.filters.listener.tls_inspector")],
        "filter_chains": [
            {
                "name": "h2",
                "filter_chain_match": {"application_protocols": ["h2"]},
                "transport_socket": _tls(files, "h2"),
                "filters": [http2_manager(config, files.descriptors)],
            },
            {
                "name": "not h2",
                "transport_socket": _tls(files, "http/1.1"),
                "filters": [http1_manager(config)],
            },
        ],
    }


def _tls(files: Files, protocol: str) -> Tree:
    common: Tree = {
        "alpn_protocols": [protocol],
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
        "tls_certificates": [
            {
                "certificate_chain": {"filename": files.certificate},
                "private_key": {"filename": files.key},
            }
        ],
    }
    if not files.client_ca:
        return extension("envoy.transport_sockets.tls", common_tls_context=common)
    common["validation_context"] = {"trusted_ca": {"filename": files.client_ca}}
    return extension(
        "envoy.transport_sockets.tls", common_tls_context=common, require_client_certificate=True
    )
