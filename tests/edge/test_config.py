"""The config as a tree: what must be in it, what must not, and that both sides agree."""

from __future__ import annotations

import copy
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from google.api import httpbody_pb2
from google.protobuf import descriptor_pb2, descriptor_pool

from rrpa_sidecar.config import Config
from rrpa_sidecar.edge import binary, descriptors, example, http, lint, render, upstream
from rrpa_sidecar.edge.bootstrap import Files, bootstrap

ROOT = pathlib.Path(__file__).parent.parent.parent
FILES = Files("d.pb", "cert.pem", "key.pem")
Tree = dict[str, Any]


@pytest.fixture
def tree() -> Tree:
    return copy.deepcopy(bootstrap(Config(), FILES))


def manager(tree: Tree) -> Tree:
    listener = tree["static_resources"]["listeners"][0]
    return listener["filter_chains"][0]["filters"][0]["typed_config"]


def routes(tree: Tree) -> list[Tree]:
    return manager(tree)["route_config"]["virtual_hosts"][0]["routes"]


def cluster(tree: Tree) -> Tree:
    return tree["static_resources"]["clusters"][0]


def http_options(tree: Tree) -> Tree:
    (options,) = cluster(tree)["typed_extension_protocol_options"].values()
    return options


def test_our_own_config_holds_cuts_and_repeats_nothing(tree: Tree) -> None:
    assert lint.findings(tree, Config()) == []


def add_filter(name: str) -> Callable[[Tree], None]:
    return lambda tree: manager(tree)["http_filters"].insert(0, {"name": name})


def add_to_route(name: str) -> Callable[[Tree], None]:
    def change(tree: Tree) -> None:
        for each in routes(tree):
            each.setdefault("typed_per_filter_config", {})[name] = {}

    return change


def lua_everywhere(tree: Tree) -> None:
    (lua,) = (f for f in manager(tree)["http_filters"] if f["name"].endswith(".lua"))
    lua["typed_config"]["default_source_code"] = {"inline_string": "x = 1"}


def lua_enabled(tree: Tree) -> None:
    (lua,) = (f for f in manager(tree)["http_filters"] if f["name"].endswith(".lua"))
    del lua["disabled"]


def lua_changed(tree: Tree) -> None:
    (lua,) = (f for f in manager(tree)["http_filters"] if f["name"].endswith(".lua"))
    lua["typed_config"]["source_codes"]["plain_http.lua"]["inline_string"] += "-- more"


def set_in(path: Callable[[Tree], Tree], **values: Any) -> Callable[[Tree], None]:
    return lambda tree: path(tree).update(values)


def to_sidecar(tree: Tree) -> Tree:
    return next(each["route"] for each in routes(tree) if "route" in each)


FAULTS: dict[str, tuple[Callable[[Tree], None], str]] = {
    "buffer": (add_filter("envoy.filters.http.buffer"), "G43"),
    "compressor": (add_filter("envoy.filters.http.compressor"), "G43"),
    "ext_proc": (add_filter("envoy.filters.http.ext_proc"), "G43"),
    "file system buffer": (add_filter("envoy.filters.http.file_system_buffer"), "G43"),
    "buffer on a route": (add_to_route("envoy.filters.http.buffer"), "G43"),
    "lua on a route": (add_to_route("envoy.filters.http.lua"), "G43"),
    "lua everywhere": (lua_everywhere, "G43"),
    "lua enabled": (lua_enabled, "G43"),
    "lua changed": (lua_changed, "G43"),
    "upstream compressor": (
        set_in(http_options, http_filters=[{"name": "envoy.filters.http.compressor"}]),
        "G43",
    ),
    "route timeout": (set_in(to_sidecar, timeout="15s"), "G42"),
    "no route timeout": (lambda tree: to_sidecar(tree).pop("timeout"), "G42"),
    "route idle timeout": (set_in(to_sidecar, idle_timeout="300s"), "G42"),
    "no idle timeout": (lambda tree: manager(tree).pop("stream_idle_timeout"), "G42"),
    "stream duration": (set_in(to_sidecar, max_stream_duration={}), "G42"),
    "retry on 5xx": (set_in(to_sidecar, retry_policy={"retry_on": "5xx"}), "G44"),
    "retry on reset": (set_in(to_sidecar, retry_policy={"retry_on": "reset"}), "G44"),
    "retry after a time": (
        set_in(to_sidecar, retry_policy={"retry_on": "", "per_try_timeout": "5s"}),
        "G44",
    ),
    "stream duration of a manager": (
        set_in(manager, common_http_protocol_options={"max_stream_duration": "300s"}),
        "G42",
    ),
    "stream duration upstream": (
        set_in(http_options, common_http_protocol_options={"max_stream_duration": "300s"}),
        "G42",
    ),
    "connections that are recycled": (
        set_in(manager, common_http_protocol_options={"max_connection_duration": "300s"}),
        "G40",
    ),
    "no resumable streams": (
        set_in(lambda tree: routes(tree)[0], request_headers_to_remove=["x-resumable"]),
        "x-resumable",
    ),
    "no stream's id": (
        set_in(lambda tree: routes(tree)[0], response_headers_to_remove=["rrpa-stream-id"]),
        "rrpa-stream-id",
    ),
    "no offset": (
        set_in(
            lambda tree: manager(tree)["route_config"], response_headers_to_remove=["rrpa-offset"]
        ),
        "rrpa-offset",
    ),
    "no way to ResumeStream": (
        set_in(
            lambda tree: routes(tree)[0],
            match={"path": "/rrpa.v1.RRPAService/CreateStream"},
        ),
        "ResumeStream",
    ),
    "HTTP/1 upstream": (set_in(http_options, explicit_http_config={}), "G46"),
    "outlier detection": (set_in(cluster, outlier_detection={}), "outlier_detection"),
    "open admin": (
        set_in(
            lambda tree: tree["admin"]["address"]["socket_address"],
            address="0.0.0.0",
        ),
        "admin",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_lint_names_a_part_that_holds_cuts_or_repeats_streams(tree: Tree, fault: str) -> None:
    change, word = FAULTS[fault]
    change(tree)
    found = lint.findings(tree, Config())
    assert any(word in finding for finding in found), found


def test_what_cuts_a_stream_is_named_with_the_time_its_caller_has_to_come_back(tree: Tree) -> None:
    to_sidecar(tree)["timeout"] = "15s"
    (found,) = lint.findings(tree, Config(resume_window_s=7))
    assert "timeout is 15s" in found
    assert found.endswith("--resume-window gives its caller 7 s to come back")


def no_panic(tree: Tree) -> None:
    cluster(tree)["common_lb_config"]["healthy_panic_threshold"] = {"value": 0.0}


def test_a_sidecar_that_came_back_is_called_before_its_streams_are_given_up(tree: Tree) -> None:
    """With the panic threshold at once; without it two health checks of 10 s may be too late."""
    assert lint.findings(tree, Config(resume_window_s=1)) == []
    no_panic(tree)
    assert lint.findings(tree, Config(resume_window_s=20.1)) == []
    assert lint.findings(tree, Config(resume_window_s=0)) == [], "nobody may come back"
    (found,) = lint.findings(tree, Config(resume_window_s=20))
    assert "restarted sidecar healthy" in found
    assert "may take 20 s, and --resume-window keeps a stream for 20 s" in found


def test_a_resume_window_shorter_than_a_connect_is_named(tree: Tree) -> None:
    assert lint.findings(tree, Config(resume_window_s=0.51)) == []
    (found,) = lint.findings(tree, Config(resume_window_s=0.5))
    assert "connect_timeout" in found


def test_an_shm_timeout_shorter_than_the_way_back_is_named(tree: Tree) -> None:
    """A stream may be over before its caller is back, and is to be there still."""
    no_panic(tree)
    window_s = 25
    assert lint.findings(tree, Config(resume_window_s=window_s, shm_timeout_s=20.1)) == []
    (found,) = lint.findings(tree, Config(resume_window_s=window_s, shm_timeout_s=20))
    assert "may take 20 s, and --shm-timeout keeps a stream that is over for 20 s" in found


def test_the_edge_lets_all_through_that_resuming_needs(tree: Tree) -> None:
    from rrpa_sidecar.frontend import metadata, methods

    told = {metadata.SERVER_STREAM_ID, metadata.RESUME_WINDOW, metadata.OFFSET}
    assert told == lint.NEEDED_TO_RESUME
    assert methods.RESUME_STREAM == lint.RESUME_PATH
    assert metadata.RESUMABLE in http.SINGLE_VALUE_HEADERS


def test_grpc_routes_run_no_filter_of_their_own(tree: Tree) -> None:
    grpc_routes = [each for each in routes(tree) if "grpc" in each["match"]]
    assert grpc_routes
    assert all("typed_per_filter_config" not in each for each in grpc_routes)
    always_on = [f["name"] for f in manager(tree)["http_filters"] if not f.get("disabled")]
    assert always_on == [
        "envoy.filters.http.header_mutation",
        "envoy.filters.http.grpc_json_transcoder",
        "envoy.filters.http.router",
    ]


def test_sockets_limits_and_capacity_are_the_sidecars() -> None:
    settings = {
        "envoy_socket": "/run/rrpa/envoy.sock",
        "envoy_listen": "[::1]:443",
        "envoy_admin": "localhost:1",
        "max_request_bytes": "3MiB",
        "shm_bytes": "64MiB",
        "queue_limit": "7",
        "envoy_health_interval_s": "2.5",
        "envoy_health_timeout_s": "1",
    }
    config = Config.load(settings)
    tree = bootstrap(config, FILES)
    listener = tree["static_resources"]["listeners"][0]
    assert listener["address"]["socket_address"] == {"address": "::1", "port_value": 443}
    admin = tree["admin"]["address"]["socket_address"]
    assert admin == {"address": "127.0.0.1", "port_value": 1}
    endpoint = cluster(tree)["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    assert endpoint["address"]["pipe"]["path"] == "/run/rrpa/envoy.sock"
    calls = 2 * (64 // 16 + 7) + upstream.REFUSAL_ROOM
    breaker = cluster(tree)["circuit_breakers"]["thresholds"][0]
    assert breaker["max_requests"] == breaker["max_pending_requests"] == calls
    assert manager(tree)["http2_protocol_options"]["max_concurrent_streams"] == calls
    (limit,) = (f for f in manager(tree)["http_filters"] if "body_size" in f["name"])
    assert limit["typed_config"]["max_request_bytes"] == 2 * 3 * 1024 * 1024
    check = cluster(tree)["health_checks"][0]
    assert (check["interval"], check["no_traffic_interval"], check["timeout"]) == (
        "2.5s",
        "2.5s",
        "1s",
    )


@pytest.mark.parametrize(
    ("flags", "status"),
    [(("UO",), 429), (("UO", "UF"), 503), (("UO", "UC"), 503), (("URX", "UF"), 503)],
)
def test_a_sidecar_that_is_away_is_never_told_as_a_limit(
    tree: Tree, flags: tuple[str, ...], status: int
) -> None:
    """Envoy 1.40 says "UO,UF" of some failed connects; RESOURCE_EXHAUSTED would end a resuming."""
    mappers = manager(tree)["local_reply_config"]["mappers"]
    chosen = next(
        each
        for each in mappers
        if set(flags) & set(each["filter"].get("response_flag_filter", {}).get("flags", ()))
    )
    assert chosen["status_code"] == status


def test_health_check_is_the_documented_one(tree: Tree) -> None:
    assert cluster(tree)["health_checks"] == [
        {
            "timeout": "5s",
            "interval": "10s",
            "no_traffic_interval": "10s",
            "unhealthy_threshold": 3,
            "healthy_threshold": 2,
            "grpc_health_check": {"service_name": "rrpa.v1.RRPAService"},
        }
    ]


def test_names_are_those_of_the_sidecar() -> None:
    from rrpa_sidecar.frontend import health, metadata

    assert descriptors.SERVICE == health.READY == "rrpa.v1.RRPAService"
    theirs = (metadata.REQUEST_ID, metadata.STREAM_ID, metadata.PRIORITY, metadata.TRACEPARENT)
    theirs += (metadata.RESUMABLE,)
    assert set(theirs) <= set(http.SINGLE_VALUE_HEADERS)


def test_descriptor_set_is_complete_and_in_order() -> None:
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptors.descriptor_set()).file
    pool = descriptor_pool.DescriptorPool()
    for each in files:  # fails if an import does not come first
        pool.Add(each)
    method = pool.FindMethodByName("rrpa.v1.RRPAService.CreateMessage")
    assert method.output_type.full_name == httpbody_pb2.HttpBody.DESCRIPTOR.full_name
    assert b"/v2/messages" in descriptors.descriptor_set()


def test_example_is_what_the_default_settings_give() -> None:
    path = ROOT / "envoy" / "envoy.yaml"
    assert path.read_text(encoding="utf-8") == example.example(), (
        f"run: python -m rrpa_sidecar.edge.example {path}"
    )


def test_yaml_says_what_the_tree_says(tree: Tree) -> None:
    assert yaml.safe_load(render.to_yaml(tree)) == tree


def test_envoy_refuses_a_config_with_a_fault(tmp_path: pathlib.Path) -> None:
    envoy = binary.find_envoy()
    assert envoy is not None
    written = render.write(Config(), tmp_path)
    assert binary.validate(envoy, written.config) == ""
    text = written.config.read_text().replace("stream_idle_timeout", "stream_idle_time_out")
    written.config.write_text(text)
    assert "stream_idle_time_out" in binary.validate(envoy, written.config)
