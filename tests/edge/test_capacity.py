"""More calls than fit, a sidecar that is ill or gone: sentences, not codes alone."""

from __future__ import annotations

import json
import re

import grpc
import pytest

from rrpa_sidecar.edge import upstream
from rrpa_sidecar.pb.rrpa_pb2_grpc import RRPAServiceStub
from tests.edge.support import Edge, FakeSidecar, message
from tests.harness.processes import eventually

MANY = 1500


def active(edge: Edge) -> int:
    found = re.search(r"cluster\.sidecar\.upstream_rq_active: (\d+)", edge.admin("/stats"))
    assert found
    return int(found[1])


@pytest.mark.timeout(90)
def test_1500_streams_at_once_all_reach_the_sidecar_twice(sidecar: FakeSidecar, edge: Edge) -> None:
    """The default breaker would overflow at 1,024 (G48); leaked streams would fill ours."""
    for _ in range(2):
        with edge.channel() as channel:
            stub = RRPAServiceStub(channel)
            calls = [stub.CreateStream(message("held", prompt="60")) for _ in range(MANY)]
            assert [next(call).data for call in calls] == [b"held"] * MANY
            assert active(edge) >= MANY
            for call in calls:
                call.cancel()
        eventually(lambda: active(edge) == 0, 20, "Envoy counts no call as active")


def test_call_beyond_envoys_own_limit_is_told_the_limit(
    sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "REFUSAL_ROOM", 0)
    sizes = {"shm_bytes": 2 << 20, "stream_bytes": 1 << 20, "queue_limit": 1}
    sidecar.settings.update(sizes)
    try:
        with Edge(sidecar) as edge, edge.channel() as channel:  # type: ignore[attr-defined]
            stub = RRPAServiceStub(channel)
            calls = [stub.CreateStream(message("held", prompt="30")) for _ in range(6)]
            assert [next(call).data for call in calls] == [b"held"] * 6
            # A client whose connection may hold only 6 streams waits; another is refused.
            reply = edge.post({"model": "x"})
            assert reply.status == 429, reply
            assert "6 calls are in flight" in reply.body
            with edge.channel(**{"grpc.use_local_subchannel_pool": 1}) as other:
                call = RRPAServiceStub(other).CreateStream(message("x"))
                with pytest.raises(grpc.RpcError) as caught:
                    list(call)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "6 calls are in flight" in caught.value.details()
            for call in calls:
                call.cancel()
    finally:
        for name in sizes:
            del sidecar.settings[name]


def test_sidecar_that_is_not_serving_still_answers_for_itself() -> None:
    """Panic on purpose (G45): with one sidecar its own sentence is better than Envoy's."""
    with FakeSidecar(health="NOT_SERVING") as sidecar:
        settings = {"envoy_health_interval_s": 0.1, "envoy_health_timeout_s": 0.1}
        with Edge(sidecar, wait_healthy=False, **settings) as edge:

            def failed_checks() -> bool:
                return "/failed_active_hc" in edge.admin("/clusters")

            eventually(failed_checks, 10, "Envoy has found the sidecar unhealthy")
            assert edge.post({"model": "x", "max_tokens": 1}).body == "token0 "


def test_sidecar_that_dies_half_way_breaks_its_streams_and_the_next_call_is_told() -> None:
    with FakeSidecar() as sidecar, Edge(sidecar) as edge:  # type: ignore[attr-defined]
        reply = edge.post({"model": "dies", "max_tokens": 3})
        assert reply.body == "token0 token1 token2 "
        assert reply.exit_code == 92
        sidecar.wait()
        gone = edge.post({"model": "x"})
        assert (gone.status, gone.exit_code) == (503, 0)
        assert gone.body == "the sidecar does not answer on its socket; try again in a few seconds"
        with edge.channel() as channel, pytest.raises(grpc.RpcError) as caught:
            list(RRPAServiceStub(channel).CreateStream(message("x"), timeout=10))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert caught.value.details() == gone.body


def test_access_log_says_why_envoy_ended_a_call(edge: Edge) -> None:
    edge.curl(path="/v1/messages")
    edge.post({"model": "x"}, "-H", "x-request-id: find-me")

    def line() -> dict[str, object] | None:
        found = [text for text in edge.stderr.splitlines() if "find-me" in text]
        return json.loads(found[-1]) if found else None

    logged = eventually(line, 15, "the call is in the access log")
    assert logged["flags"] == "-"
    assert logged["path"] == "/v2/messages"
    assert logged["status"] == 200
    assert logged["grpc_status"] == "OK"
