"""What may never be in the config, said in one sentence each.

Somebody adds a compressor or a timeout to an Envoy config in good faith, and tokens arrive in
lumps or streams end after five minutes. `findings` reads a config, ours or one that was changed,
and names such parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rrpa_sidecar.edge.extensions import Tree
from rrpa_sidecar.edge.routes import (
    BODY_LIMIT,
    LUA,
    PLAIN_HTTP_LUA,
    READ_REQUEST_LUA,
    SCRIPTS,
    TRANSCODER,
)

FILTERS_THAT_HOLD_NOTHING = {
    "envoy.filters.http.header_mutation",
    "envoy.filters.http.router",
    "envoy.filters.http.upstream_codec",
    BODY_LIMIT,
    LUA,  # as long as it runs our scripts only
    TRANSCODER,
}
"""All others may keep bytes back (buffer, compressor, ext_proc …) or were not looked at (G43)."""

SAFE_RETRIES = {"connect-failure", "refused-stream"}
LOOPBACK = ("127.", "::1")


def findings(tree: Tree) -> list[str]:
    """Return one sentence for each part of `tree` that can hold, cut or repeat a stream."""
    return [*_admin(tree), *_managers(tree), *_routes(tree), *_clusters(tree)]


def _admin(tree: Tree) -> Iterator[str]:
    for address in _all(tree.get("admin", {}), "socket_address"):
        if not str(address["address"]).startswith(LOOPBACK):
            yield f"admin listens on {address['address']}; anyone there can stop Envoy"


def _managers(tree: Tree) -> Iterator[str]:
    for manager in _typed(tree, "HttpConnectionManager"):
        name = manager.get("stat_prefix", "?")
        for key in ("stream_idle_timeout", "request_timeout"):
            if manager.get(key) != "0s":
                yield f"{name}: {key} is {manager.get(key)}; a silent stream is cut (G42)"
        if "max_stream_duration" in manager.get("common_http_protocol_options", {}):
            yield f"{name}: max_stream_duration cuts streams (G42)"
        yield from _filters(name, manager.get("http_filters", []))
    for options in _typed(tree, "HttpProtocolOptions"):
        yield from _filters("upstream", options.get("http_filters", []))


def _filters(where: str, filters: list[Tree]) -> Iterator[str]:
    for each in filters:
        if each["name"] not in FILTERS_THAT_HOLD_NOTHING:
            yield f"{where}: filter {each['name']} may hold tokens back (G43)"
        elif each["name"] == LUA and not _our_scripts(each):
            yield f"{where}: Lua that is not ours, or on every route, may read streams (G43)"


def _routes(tree: Tree) -> Iterator[str]:
    for route in _all(tree, "routes"):
        for each in route:
            yield from _route(each)


def _route(route: Tree) -> Iterator[str]:
    match = route.get("match", {})
    where = f"route {match.get('path') or match.get('prefix')}"
    for name, config in route.get("typed_per_filter_config", {}).items():
        if name not in FILTERS_THAT_HOLD_NOTHING:
            yield f"{where}: filter {name} may hold tokens back (G43)"
        elif name == LUA:
            yield from _script(where, config, to_sidecar="route" in route)
    action = route.get("route")
    if action is None:
        return
    for key in ("timeout", "idle_timeout"):
        if action.get(key) != "0s":
            yield f"{where}: {key} is {action.get(key)}; streams are cut (G42)"
    if "max_stream_duration" in action:
        yield f"{where}: max_stream_duration cuts streams (G42)"
    policy = action.get("retry_policy", {})
    wrong = set(filter(None, policy.get("retry_on", "").split(","))) - SAFE_RETRIES
    if wrong or "per_try_timeout" in policy or "hedge_policy" in action:
        parts = ", ".join(sorted(wrong)) or "a timeout"
        yield f"{where}: a retry on {parts} can start an engine twice (G44)"


def _our_scripts(filter_: Tree) -> bool:
    config = filter_.get("typed_config", {})
    codes = {name: {"inline_string": code} for name, code in SCRIPTS.items()}
    return (
        filter_.get("disabled") is True
        and set(config) <= {"@type", "source_codes"}
        and config.get("source_codes") == codes
    )


def _script(where: str, config: Tree, *, to_sidecar: bool) -> Iterator[str]:
    wanted = PLAIN_HTTP_LUA if to_sidecar else READ_REQUEST_LUA
    if config.get("name") != wanted or set(config) != {"@type", "name"}:
        yield f"{where}: Lua that is not ours may read streams (G43)"


def _clusters(tree: Tree) -> Iterator[str]:
    for cluster in tree.get("static_resources", {}).get("clusters", []):
        name = cluster.get("name", "?")
        if not any(True for _ in _all(cluster, "http2_protocol_options")):
            yield f"cluster {name}: no http2_protocol_options; every call ends as UPE (G46)"
        if "outlier_detection" in cluster:
            yield f"cluster {name}: outlier_detection takes the only sidecar away"
        if cluster.get("close_connections_on_host_health_failure"):
            yield f"cluster {name}: a failed health check closes running streams"


def _typed(tree: Any, type_name: str) -> Iterator[Tree]:
    for node in _nodes(tree):
        if str(node.get("@type", "")).endswith(f".{type_name}"):
            yield node


def _all(tree: Any, key: str) -> Iterator[Any]:
    for node in _nodes(tree):
        if key in node:
            yield node[key]


def _nodes(tree: Any) -> Iterator[Tree]:
    if isinstance(tree, dict):
        yield tree
        for value in tree.values():
            yield from _nodes(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _nodes(value)
