"""Which request goes where, and with which headers."""

from __future__ import annotations

import pathlib

from rrpa_sidecar.config import Config
from rrpa_sidecar.edge.descriptors import SERVICE
from rrpa_sidecar.edge.extensions import Tree, typed
from rrpa_sidecar.edge.replies import (
    GET_A_STREAM,
    GONE,
    METHOD_NOT_ALLOWED,
    NO_QUERY,
    NO_SUCH_PATH,
    max_json_bytes,
)
from rrpa_sidecar.edge.upstream import CLUSTER

MESSAGES_PATH = "/v2/messages"
STREAM_PATHS = "/v2/streams/[^/]+"
"""A regular expression, as the transcoder's template {stream_id} has it: one segment."""
OLD_PATH = "/v1/messages"

GRPC_PREFIXES = (f"/{SERVICE}/", "/grpc.health.v1.Health/", "/grpc.reflection.")
"""The gRPC services that callers may reach through the edge."""

STREAM_ID = "x-stream-id"

BODY_LIMIT = "envoy.filters.http.body_size_limit"
LUA = "envoy.filters.http.lua"
TRANSCODER = "envoy.filters.http.grpc_json_transcoder"

PLAIN_HTTP = "rrpa-plain-http"
"""Tells the sidecar that this caller cannot read gRPC's trailers.

A plain HTTP client takes a stream that failed half-way for a complete one, since HTTP has said
200 long before. So the sidecar breaks such a stream instead: it sends one frame that is no
google.api.HttpBody. Envoy 1.40's transcoder answers that by resetting the client's stream
(RST_STREAM, INTERNAL_ERROR; curl: exit 92). Nothing in Envoy's own config can do it: Lua
sees the trailers but cannot reset, and local replies and custom responses need headers that
have not been sent. tests/edge proves it with the real binary.
"""

PLAIN_HTTP_LUA, READ_REQUEST_LUA = "plain_http.lua", "read_request.lua"

SCRIPTS = {
    name: (pathlib.Path(__file__).parent / name).read_text(encoding="utf-8")
    for name in (PLAIN_HTTP_LUA, READ_REQUEST_LUA)
}
"""Code of the Lua filter by name; a route says which one it runs, and gRPC's run none."""


def route_config(config: Config) -> Tree:
    """Return all routes of the edge; the first that fits is taken."""
    return {
        "name": "edge",
        "virtual_hosts": [
            {
                "name": "edge",
                "domains": ["*"],
                "routes": [
                    *(_grpc(prefix) for prefix in GRPC_PREFIXES),
                    _refused_query(),
                    _messages(config),
                    _says({"path": MESSAGES_PATH}, 405, METHOD_NOT_ALLOWED),
                    _resumed(),
                    _says(_regex(STREAM_PATHS), 405, GET_A_STREAM),
                    _says({"path": OLD_PATH}, 410, GONE),
                    {"match": {"prefix": "/"}, **_answer(404, NO_SUCH_PATH)},
                ],
            }
        ],
    }


def _grpc(prefix: str) -> Tree:
    return {
        "match": {"prefix": prefix, "grpc": {}},
        "route": _to_sidecar(),
        "request_headers_to_add": [_added_if_absent(STREAM_ID, "%UNIQUE_ID%")],
        "request_headers_to_remove": [PLAIN_HTTP],
    }


def _messages(config: Config) -> Tree:
    return {
        **_plain_http({"path": MESSAGES_PATH}, "POST"),
        # Room for plain_http.lua to read what the limit then refuses with a sentence. A body
        # beyond even this is refused before it has been read.
        "request_body_buffer_limit": 2 * max_json_bytes(config),
        "typed_per_filter_config": {
            BODY_LIMIT: typed("config.route.v3.FilterConfig", disabled=False, config={}),
            LUA: _script(PLAIN_HTTP_LUA),
        },
    }


def _resumed() -> Tree:
    return {
        **_plain_http(_regex(STREAM_PATHS), "GET"),
        "typed_per_filter_config": {LUA: _script(PLAIN_HTTP_LUA)},
    }


def _plain_http(match: Tree, method: str) -> Tree:
    """Return a route for callers who get the answer's bytes as a body."""
    wanted = {"name": ":method", "string_match": {"exact": method}}
    return {
        "match": {**match, "headers": [wanted]},
        "route": _to_sidecar(),
        "request_headers_to_add": [
            _added_if_absent(STREAM_ID, "%UNIQUE_ID%"),
            {
                "header": {"key": PLAIN_HTTP, "value": "1"},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            },
        ],
        "response_headers_to_remove": ["grpc-accept-encoding"],
    }


def _regex(regex: str) -> Tree:
    return {"safe_regex": {"regex": regex}}


def _refused_query() -> Tree:
    any_query = {"name": ":path", "string_match": {"contains": "?"}}
    return {
        "match": {"path": MESSAGES_PATH, "headers": [any_query]},
        **_answer(400, NO_QUERY),
    }


def _script(name: str) -> Tree:
    return typed("extensions.filters.http.lua.v3.LuaPerRoute", name=name)


def _to_sidecar() -> Tree:
    return {
        "cluster": CLUSTER,
        # Envoy cuts at 15 s by default, then after 5 idle minutes (G42). Callers' deadlines
        # (grpc-timeout) reach the sidecar unchanged, and it alone enforces them.
        "timeout": "0s",
        "idle_timeout": "0s",
        # Only what provably never reached an engine: no connection, or a stream that the
        # sidecar refused unseen (REFUSED_STREAM). Everything else could start it twice (G44).
        "retry_policy": {"retry_on": "connect-failure,refused-stream", "num_retries": 1},
    }


def _added_if_absent(key: str, value: str) -> Tree:
    return {"header": {"key": key, "value": value}, "append_action": "ADD_IF_ABSENT"}


def _says(match: Tree, status: int, sentence: str) -> Tree:
    return {"match": match, **_answer(status, sentence)}


def _answer(status: int, sentence: str) -> Tree:
    return {
        "direct_response": {"status": status, "body": {"inline_string": sentence}},
        "typed_per_filter_config": {
            LUA: _script(READ_REQUEST_LUA),
            TRANSCODER: typed("config.route.v3.FilterConfig", disabled=True),
        },
    }
