"""The end of a log never overtakes its last token, however the writer's steps are spread.

RRPA_RUNS=10000 makes the whole proof, in about half a minute.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator

import grpc.aio
import pytest

from rrpa_sidecar.pb import rrpa_pb2_grpc
from tests.conformance.callers import Request
from tests.faults.many import times
from tests.faults.pausing_engine import CAPACITY, tokens_of
from tests.harness.processes import Process, Stack

RUNS = 1200
AT_ONCE = 64


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """grpcio at the port, batched at Envoy's socket: both read the same logs."""
    sizes = {"stream_bytes": "128KiB", "shm_bytes": 2 * CAPACITY * 128 * 1024}
    with Stack(sizes, engine=None) as running:
        yield running


async def ask_all(target: str, prompts: list[str]) -> list[str]:
    """Ask for all, AT_ONCE at a time; return a sentence for each answer that is wrong."""
    faults: list[str] = []
    waiting = iter(prompts)

    async def ask(stub: rrpa_pb2_grpc.RRPAServiceAsyncStub) -> None:
        for prompt in waiting:
            frames = [
                each async for each in stub.CreateStream(Request(model="test", prompt=prompt))
            ]
            tokens = tokens_of(prompt)
            wanted = b"".join(tokens).decode("utf-8", "replace").encode()
            data = b"".join(frame.data for frame in frames)
            finish = frames[-1].finish
            if data != wanted or not frames[-1].HasField("finish"):
                faults.append(f"{prompt}: {data!r} instead of {wanted!r}")
            elif finish.usage.completion_tokens != len(tokens):
                faults.append(f"{prompt}: {finish.usage.completion_tokens} of {len(tokens)} tokens")

    async with grpc.aio.insecure_channel(target) as channel:
        stub = rrpa_pb2_grpc.RRPAServiceStub(channel)
        await asyncio.gather(*(ask(stub) for _ in range(AT_ONCE)))
    return faults


@pytest.mark.parametrize("door", ["grpcio", "batched"])
async def test_no_answer_ends_before_its_last_token(
    stack: Stack, seeded: random.Random, door: str
) -> None:
    daemon = stack.daemon
    target = daemon.grpc_address if door == "grpcio" else f"unix:{daemon.envoy_socket}"
    argv = [sys.executable, "-m", "tests.faults.pausing_engine"]
    argv += [daemon.engine_socket, str(daemon.shm_dir), str(seeded.random())]
    with Process(argv, ready="pausing engine ready"):
        prompts = [str(seeded.random()) for _ in range(times(RUNS))]
        assert await ask_all(target, prompts) == []
