"""A real daemon with the batched front end at both doors, and a neighbour who must not notice."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from rrpa_sidecar.pb import rrpa_pb2 as pb
from tests.harness.processes import Daemon, ReplayEngine, Stack
from tests.hostile.frames import STREAM

PIECE = "Über die Brücke, 桥上. "
TOKENS = [each.encode().hex() for each in ("Über", " die ", "Brücke", ", 桥", "上. ")]
PACE_S = 0.005

STALL_S = 1.0
"""Longest gap between two of the neighbour's frames, where the engine makes one of 5 ms. A front
end that acts on whole reads is away for 1.3 to 14 s in these attacks; the rest is for machines
on which other tests run."""


def request(**script: object) -> bytes:
    """Return a request that says exactly what the replay engine answers."""
    prompt = "replay:" + json.dumps(script)
    return pb.CreateStreamRequest(model="test", prompt=prompt).SerializeToString()


class Neighbour:
    """A client on a connection of its own, who reads a paced answer all the time."""

    def __init__(self, address: str) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        self._channel = grpc.insecure_channel(address, options=options)
        ask = self._channel.unary_stream(STREAM, None, pb.CreateStreamResponse.FromString)
        self._call = ask(request(tokens=TOKENS, repeat=100_000, delay_s=PACE_S))
        self._text = b""
        self.frames = 0
        self.longest_gap_s = 0.0
        self._seen_s = time.monotonic()
        self._read(10)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self, frames: int = 0) -> None:
        try:
            for frame in self._call:
                now_s = time.monotonic()
                if frames == 0:
                    self.longest_gap_s = max(self.longest_gap_s, now_s - self._seen_s)
                self._seen_s = now_s
                assert frame.offset == len(self._text)
                self._text += frame.data
                self.frames += 1
                if self.frames == frames:
                    return
        except grpc.RpcError:
            pass

    def is_undisturbed(self) -> None:
        """Fail if anything was lost, wrong or late; the stream goes on for a while first."""
        self._wait_for(self.frames + 20)
        self._call.cancel()
        self._thread.join(5)
        self._channel.close()
        assert self._call.code() is grpc.StatusCode.CANCELLED, self._call.details()
        piece = PIECE.encode()
        assert self._text == (piece * (len(self._text) // len(piece) + 1))[: len(self._text)]
        assert self.longest_gap_s < STALL_S

    def _wait_for(self, frames: int) -> None:
        end_s = time.monotonic() + 10
        while self.frames < frames and self._thread.is_alive():
            assert time.monotonic() < end_s, "the neighbour's stream stands still"
            time.sleep(0.005)


SETTINGS = {
    "listen_frontend": "batched",
    "envoy_frontend": "batched",
    "stream_bytes": 2**18,
    "shm_bytes": 2**26,
    "queue_limit": 0,
    "log_level": "warning",
}


@pytest.fixture(scope="package")
def stack() -> Iterator[Stack]:
    with Stack(SETTINGS, engine={"capacity": 256}) as running:
        yield running
        assert "Traceback" not in running.daemon.stderr
        assert "ended by a fault" not in running.daemon.stderr


@pytest.fixture(params=["envoy", "tcp"])
def door(request: pytest.FixtureRequest, stack: Stack) -> str:
    return stack.daemon.envoy_socket if request.param == "envoy" else stack.daemon.grpc_address


@pytest.fixture
def neighbour(stack: Stack) -> Iterator[Neighbour]:
    made = Neighbour(f"unix:{stack.daemon.envoy_socket}")
    yield made
    made.is_undisturbed()


@pytest.fixture(scope="package")
def impatient() -> Iterator[Stack]:
    """The same with a fiftieth of the times of the peers' life."""
    code = (
        "from rrpa_sidecar.cli import main\n"
        "from rrpa_sidecar.frontend.batched import liveness\n"
        "liveness.GREETING_S, liveness.KEEPALIVE_S = 0.2, 0.4\n"
        "liveness.KEEPALIVE_TIMEOUT_S = 0.4\n"
        "main()\n"
    )
    stack = Stack(SETTINGS, engine={"capacity": 256})
    stack.daemon.argv = [sys.executable, "-c", code, *stack.daemon.argv[3:]]
    with stack:
        yield stack


__all__ = ["Daemon", "ReplayEngine"]
