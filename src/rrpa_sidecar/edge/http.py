"""The HTTP connection managers: one that serves HTTP/2, one that turns HTTP/1 away."""

from __future__ import annotations

from rrpa_sidecar.config import Config
from rrpa_sidecar.edge.descriptors import SERVICE
from rrpa_sidecar.edge.extensions import Tree, extension, seconds
from rrpa_sidecar.edge.replies import HTTP2_ONLY, REQUEST_HEADERS_KIB, local_replies, max_json_bytes
from rrpa_sidecar.edge.routes import BODY_LIMIT, LUA, SCRIPTS, STREAM_ID, TRANSCODER, route_config
from rrpa_sidecar.edge.upstream import max_calls

MANAGER = "envoy.filters.network.http_connection_manager"

SINGLE_VALUE_HEADERS = (
    "x-request-id",
    STREAM_ID,
    "x-priority",
    "x-resumable",
    "traceparent",
    "x-cache-key",
)
"""Headers of which the sidecar gets exactly one value or none, whatever was sent (G47)."""

PING_INTERVAL_S = 30.0
PING_TIMEOUT_S = 60.0
"""A client that vanished without a word is found after at most 90 s (G14). A client whose
program is stuck that long answers no ping either; one that reads slowly does."""

MAX_OUTBOUND_FRAMES = 100_000
"""Frames that may wait for a client that reads nothing, before Envoy ends its connection.

The buffer's limit (bootstrap.py) stops the sidecar at 1 MiB, which is 55,000 frames of one short
token each, so this is never reached. With Envoy's 10,000 it was, before that limit: a client with
large windows and 512 streams of 100 tokens/s lost them all when it stood still for 2.3 s."""

UPLOAD_WINDOW_BYTES = 256 * 1024
CONNECTION_UPLOAD_WINDOW_BYTES = 16 * 1024 * 1024

ACCESS_LOG = {
    "time": "%START_TIME%",
    "method": "%REQ(:METHOD)%",
    "path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",
    "protocol": "%PROTOCOL%",
    "status": "%RESPONSE_CODE%",
    "grpc_status": "%GRPC_STATUS%",
    # Why Envoy itself ended a call: UF, UC, UO, UPE, DC … envoy/README.md has the causes.
    "flags": "%RESPONSE_FLAGS%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "request_bytes": "%BYTES_RECEIVED%",
    "response_bytes": "%BYTES_SENT%",
    "duration_ms": "%DURATION%",
    "first_byte_ms": "%RESPONSE_DURATION%",
    "request_id": "%REQ(X-REQUEST-ID)%",
    "stream_id": "%REQ(X-STREAM-ID)%",
    "peer": "%DOWNSTREAM_REMOTE_ADDRESS%",
}


def http2_manager(config: Config, descriptor_path: str) -> Tree:
    """Return the connection manager that does the work."""
    return extension(
        MANAGER,
        stat_prefix="edge",
        codec_type="HTTP2",
        http2_protocol_options=_http2(config),
        **_limits(),
        **_identity(),
        local_reply_config=local_replies(config),
        access_log=[_access_log()],
        route_config=route_config(config),
        http_filters=_filters(config, descriptor_path),
    )


def http1_manager(config: Config) -> Tree:
    """Return the connection manager for callers that did not offer HTTP/2 in TLS (G46)."""
    refusal = {"status": 505, "body": {"inline_string": HTTP2_ONLY}}
    return extension(
        MANAGER,
        stat_prefix="edge_http1",
        codec_type="HTTP1",
        http_protocol_options={"accept_http_10": True},
        **_limits(),
        local_reply_config=local_replies(config),
        access_log=[_access_log()],
        route_config={
            "name": "refusal",
            "virtual_hosts": [
                {
                    "name": "refusal",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "direct_response": refusal}],
                }
            ],
        },
        http_filters=[extension("envoy.filters.http.router")],
    )


def _http2(config: Config) -> Tree:
    return {
        # In the first SETTINGS frame, before a client can open its streams.
        "max_concurrent_streams": max_calls(config),
        "initial_stream_window_size": UPLOAD_WINDOW_BYTES,
        "initial_connection_window_size": CONNECTION_UPLOAD_WINDOW_BYTES,
        "max_outbound_frames": MAX_OUTBOUND_FRAMES,
        # One connection may cancel all its streams at once. By default 1,000 (then 33 a
        # second) end the connection and everybody else's streams on it: GOAWAY, flag DPE.
        "stream_reset_burst": max_calls(config),
        "stream_reset_rate": max_calls(config),
        # One bad header ends one stream, not everybody's on that connection.
        "override_stream_error_on_invalid_http_message": True,
        "connection_keepalive": {
            "interval": seconds(PING_INTERVAL_S),
            "timeout": seconds(PING_TIMEOUT_S),
        },
    }


def _limits() -> Tree:
    return {
        # 0: never. A stream may be silent for as long as its engine thinks (G42).
        "stream_idle_timeout": "0s",
        "request_timeout": "0s",
        "request_headers_timeout": "10s",
        "max_request_headers_kb": REQUEST_HEADERS_KIB,
        "common_http_protocol_options": {"max_headers_count": 64},
    }


def _identity() -> Tree:
    return {
        "use_remote_address": True,
        # Nobody is "internal": x-envoy-* headers that would set timeouts or retries from
        # outside are dropped even when the caller is on loopback (G44).
        "internal_address_config": {"cidr_ranges": []},
        "generate_request_id": True,
        "preserve_external_request_id": True,
        "normalize_path": True,
    }


def _access_log() -> Tree:
    return extension("envoy.access_loggers.stderr", log_format={"json_format": ACCESS_LOG})


def _filters(config: Config, descriptor_path: str) -> list[Tree]:
    # None of them holds a byte of an answer back; `lint` refuses those that would (G43).
    return [
        _header_rules(),
        {**extension(LUA, source_codes=_scripts()), "disabled": True},
        # Counts, and holds nothing (the transcoder's own limit lets larger bodies pass, seen
        # with Envoy 1.40). The limit on requests is the sidecar's, on the message, and gives
        # RESOURCE_EXHAUSTED; this one is for JSON texts that are no message at all.
        {**extension(BODY_LIMIT, max_request_bytes=max_json_bytes(config)), "disabled": True},
        extension(
            TRANSCODER,
            proto_descriptor=descriptor_path,
            services=[SERVICE],
            # The route keeps what it says about the path that the caller used.
            match_incoming_request_route=True,
            # Makes the HTTP status; plain_http.lua makes the body.
            convert_grpc_status=True,
            request_validation_options={"reject_unknown_query_parameters": True},
        ),
        extension("envoy.filters.http.router", suppress_envoy_headers=True),
    ]


def _scripts() -> Tree:
    return {name: {"inline_string": code} for name, code in SCRIPTS.items()}


def _header_rules() -> Tree:
    mutations: list[Tree] = [
        {"remove_on_match": {"key_matcher": {"prefix": "x-envoy-", "ignore_case": True}}}
    ]
    for name in SINGLE_VALUE_HEADERS:
        mutations += _single_value(name)
    return extension(
        "envoy.filters.http.header_mutation", mutations={"request_mutations": mutations}
    )


def _single_value(name: str) -> list[Tree]:
    # The first value moves to a name of ours and back; an empty one is lost on the way, since
    # Envoy adds no empty values. Overwriting in place would keep '' (seen with Envoy 1.40).
    return [
        {"remove": "rrpa-kept"},
        _moved(name, "rrpa-kept"),
        {"remove": name},
        _moved("rrpa-kept", name),
        {"remove": "rrpa-kept"},
    ]


def _moved(source: str, target: str) -> Tree:
    return {
        "append": {
            "header": {"key": target, "value": f"%REQ({source})%"},
            "append_action": "ADD_IF_ABSENT",
        }
    }
