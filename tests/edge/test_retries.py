"""One call of a client starts an engine at most once (field-bugs.md G44)."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import grpc
import pytest

from rrpa_sidecar.pb.rrpa_pb2_grpc import RRPAServiceStub
from tests.edge.support import Edge, FakeSidecar, message

SCRIPT = pathlib.Path(__file__).parent / "rude_upstream.py"
ASKS_FOR_RETRIES = [("x-envoy-retry-on", "5xx,reset,cancelled"), ("x-envoy-max-retries", "5")]


@pytest.fixture(scope="module")
def rude() -> Iterator[FakeSidecar]:
    with FakeSidecar(script=SCRIPT) as running:
        yield running


@pytest.fixture(scope="module")
def edge(rude: FakeSidecar) -> Iterator[Edge]:
    with Edge(rude) as running:
        yield running  # type: ignore[misc]


def starts(sidecar: FakeSidecar) -> int:
    path = pathlib.Path(f"{sidecar.socket}.count")
    return len(path.read_text()) if path.exists() else 0


@pytest.mark.parametrize(
    ("word", "most"),
    [
        ("rude-before-headers", 1),
        ("rude-after-headers", 1),
        ("rude-after-frames", 1),
        # Refused unseen, says HTTP/2: no engine has started. Once more, not for ever.
        ("rude-refuses", 2),
    ],
)
@pytest.mark.parametrize("way", ["grpc", "http"])
def test_broken_call_is_not_repeated_even_if_the_client_asks_for_it(
    edge: Edge, rude: FakeSidecar, way: str, word: str, most: int
) -> None:
    before = starts(rude)
    if way == "grpc":
        options = {"grpc.enable_retries": 0}
        with edge.channel(**options) as channel, pytest.raises(grpc.RpcError) as caught:
            list(RRPAServiceStub(channel).CreateStream(message(word), metadata=ASKS_FOR_RETRIES))
        assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL)
    else:
        headers = [part for key, value in ASKS_FOR_RETRIES for part in ("-H", f"{key}: {value}")]
        reply = edge.post({"model": word}, *headers)
        assert reply.exit_code != 0 or reply.status == 503
        assert reply.exit_code != 0 or reply.body.startswith("the sidecar broke the call off")
    assert starts(rude) - before == most
