"""The grpc.aio server that clients and Envoy call: options and the table of methods."""

from __future__ import annotations

from typing import Any

import grpc

from rrpa_sidecar.config import Config
from rrpa_sidecar.frontend.grpcio.handlers import RRPAHandlers
from rrpa_sidecar.frontend.grpcio.health import HealthHandlers
from rrpa_sidecar.frontend.grpcio.reflection import info
from rrpa_sidecar.frontend.health import Health
from rrpa_sidecar.frontend.limits import (
    GREETING_S,
    KEEPALIVE_S,
    KEEPALIVE_TIMEOUT_S,
    streams_limit,
)
from rrpa_sidecar.frontend.methods import METHODS, REFLECTION

KEEPALIVE = (
    ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_S * 1000),
    # The time above is a part of this one, whose default of 60 s would prevail (grpcio 1.85).
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_S * 1000),
    # Callers may ping as often as every 10 s, also with no call open: half of that is allowed, so
    # that jitter never counts as a strike. gRPC's own default of 5 minutes ends connections.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)


def server_options(config: Config) -> list[tuple[str, int]]:
    """Return the options of every gRPC server of this process."""
    return [
        # Two daemons on one port would each get part of the calls.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", config.max_request_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", streams_limit(config)),
        # Calls that wait for their handler: above 1,000 gRPC's core drops some with CANCELLED,
        # where we refuse with a reason (seen with a burst of 1,500 through Envoy).
        ("grpc.server.max_pending_requests", 2**20),
        ("grpc.server.max_pending_requests_hard_limit", 2**20),
        ("grpc.server_handshake_timeout_ms", GREETING_S * 1000),
        *KEEPALIVE,
    ]


def create_server(config: Config, handlers: RRPAHandlers, health: Health) -> grpc.aio.Server:
    """Return the server with all services, not started, on no port."""
    server = grpc.aio.server(options=server_options(config))
    server.add_generic_rpc_handlers(tuple(_services(handlers, health)))
    return server


def _services(handlers: RRPAHandlers, health: Health) -> list[grpc.GenericRpcHandler[Any, Any]]:
    """Every method of the one table, with bytes in and bytes out, and reflection."""
    checks = HealthHandlers(health)
    serve = {
        "CreateStream": handlers.create_stream,
        "CreateMessage": handlers.create_message,
        "ResumeStream": handlers.resume_stream,
        "ResumeMessage": handlers.resume_message,
        "CancelStream": handlers.cancel_stream,
        "ListModels": handlers.list_models,
        "Check": checks.check,
        "Watch": checks.watch,
    }
    table: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = {
        service: {name: _handler(serve[name], streams) for name, streams in methods.items()}
        for service, methods in METHODS.items()
    }
    table[REFLECTION] = {"ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(info)}
    return [
        grpc.method_handlers_generic_handler(service, methods) for service, methods in table.items()
    ]


def _handler(serve: Any, streams: bool) -> grpc.RpcMethodHandler[Any, Any]:
    if streams:
        return grpc.unary_stream_rpc_method_handler(serve)
    return grpc.unary_unary_rpc_method_handler(serve)
