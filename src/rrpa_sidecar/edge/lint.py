"""What may never be in the config, said in one sentence each.

Somebody adds a compressor or a timeout to an Envoy config in good faith, and tokens arrive in
lumps, streams end after five minutes, or nobody can resume one. `findings` reads a config, ours or
one that was changed, beside the sidecar's settings, and names such parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rrpa_sidecar.config import Config
from rrpa_sidecar.edge.descriptors import SERVICE
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

RESUME_PATH = f"/{SERVICE}/ResumeStream"
NEEDED_TO_RESUME = {"rrpa-stream-id", "rrpa-resume-window", "rrpa-offset"}
"""What a caller has to be told; tests hold the names against frontend/metadata.py."""

SAFE_RETRIES = {"connect-failure", "refused-stream"}
LOOPBACK = ("127.", "::1")


def findings(tree: Tree, config: Config) -> list[str]:
    """Return one sentence for each part of `tree` that harms streams of `config`'s sidecar.

    It can hold, cut or repeat one, or keep its caller from resuming it in time.
    """
    window = f"; --resume-window gives its caller {config.resume_window_s:g} s to come back"
    cuts = [each + window for each in (*_cuts(tree), *_route_cuts(tree))]
    return [
        *_admin(tree),
        *_managers(tree),
        *cuts,
        *_routes(tree),
        *_clusters(tree),
        *_resuming(tree, config),
    ]


def _admin(tree: Tree) -> Iterator[str]:
    for address in _all(tree.get("admin", {}), "socket_address"):
        if not str(address["address"]).startswith(LOOPBACK):
            yield f"admin listens on {address['address']}; anyone there can stop Envoy"


def _managers(tree: Tree) -> Iterator[str]:
    for manager in _typed(tree, "HttpConnectionManager"):
        yield from _filters(manager.get("stat_prefix", "?"), manager.get("http_filters", []))
    for options in _typed(tree, "HttpProtocolOptions"):
        yield from _filters("upstream", options.get("http_filters", []))


def _cuts(tree: Tree) -> Iterator[str]:
    """Times after which a manager or the cluster ends a stream."""
    for manager in _typed(tree, "HttpConnectionManager"):
        name = manager.get("stat_prefix", "?")
        for key in ("stream_idle_timeout", "request_timeout"):
            if manager.get(key) != "0s":
                yield f"{name}: {key} is {manager.get(key)}, so a silent stream is cut (G42)"
        yield from _durations(name, manager)
    for options in _typed(tree, "HttpProtocolOptions"):
        yield from _durations("upstream", options)


def _durations(where: str, holder: Tree) -> Iterator[str]:
    common = holder.get("common_http_protocol_options", {})
    if "max_stream_duration" in common:
        yield f"{where}: max_stream_duration cuts streams (G42)"
    if "max_connection_duration" in common:
        yield f"{where}: max_connection_duration cuts streams that outlive it (G40)"


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
    where = _name(route)
    for name, config in route.get("typed_per_filter_config", {}).items():
        if name not in FILTERS_THAT_HOLD_NOTHING:
            yield f"{where}: filter {name} may hold tokens back (G43)"
        elif name == LUA:
            yield from _script(where, config, to_sidecar="route" in route)
    action = route.get("route")
    if action is None:
        return
    policy = action.get("retry_policy", {})
    wrong = set(filter(None, policy.get("retry_on", "").split(","))) - SAFE_RETRIES
    if wrong or "per_try_timeout" in policy or "hedge_policy" in action:
        parts = ", ".join(sorted(wrong)) or "a timeout"
        yield f"{where}: a retry on {parts} can start an engine twice (G44)"


def _name(route: Tree) -> str:
    match = route.get("match", {})
    regex = match.get("safe_regex", {}).get("regex")
    return f"route {match.get('path') or match.get('prefix') or regex}"


def _route_cuts(tree: Tree) -> Iterator[str]:
    """Times after which a route ends a stream."""
    for route in _all(tree, "routes"):
        for each in route:
            action = each.get("route", {"timeout": "0s", "idle_timeout": "0s"})
            for key in ("timeout", "idle_timeout"):
                if action.get(key) != "0s":
                    yield f"{_name(each)}: {key} is {action.get(key)}, so streams are cut (G42)"
            if "max_stream_duration" in action:
                yield f"{_name(each)}: max_stream_duration cuts streams (G42)"


def _resuming(tree: Tree, config: Config) -> Iterator[str]:
    """What keeps callers from resuming, or from doing so in time."""
    for names in _all(tree, "request_headers_to_remove"):
        if "x-resumable" in names:
            yield "x-resumable is removed, so that no stream outlives its caller"
    for names in _all(tree, "response_headers_to_remove"):
        for name in sorted(NEEDED_TO_RESUME & set(names)):
            yield f"{name} is removed, without which nobody can resume"
    if not any(_leads_to_resume(each) for routes in _all(tree, "routes") for each in routes):
        yield f"no route leads to {RESUME_PATH}"
    kept = (
        (config.resume_window_s, "--resume-window keeps a stream"),
        (config.shm_timeout_s, "--shm-timeout keeps a stream that is over"),
    )
    for cluster in tree.get("static_resources", {}).get("clusters", []):
        for back_s, why in _times_back(cluster):
            for kept_s, keeps in kept:
                if 0 < kept_s <= back_s:
                    yield (
                        f"cluster {cluster.get('name', '?')}: {why} may take {back_s:g} s, and"
                        f" {keeps} for {kept_s:g} s"
                    )


def _leads_to_resume(route: Tree) -> bool:
    match = route.get("match", {})
    prefix = match.get("prefix")
    fits = match.get("path") == RESUME_PATH or (prefix and RESUME_PATH.startswith(prefix))
    return bool(fits) and "route" in route


def _times_back(cluster: Tree) -> Iterator[tuple[float, str]]:
    """Yield how long a caller may need for its way back through this cluster, and why."""
    yield _seconds(cluster.get("connect_timeout", "5s")), "a connection (connect_timeout)"
    panic = cluster.get("common_lb_config", {}).get("healthy_panic_threshold", {"value": 50.0})
    if panic.get("value"):
        return  # a sidecar that came back is called before it is found healthy
    for check in cluster.get("health_checks", []):
        back_s = _seconds(check["interval"]) * check["healthy_threshold"]
        yield back_s, "finding a restarted sidecar healthy, without a panic threshold,"


def _seconds(duration: str) -> float:
    return float(duration.removesuffix("s"))


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
