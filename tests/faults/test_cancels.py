"""Cancellations that come at the very moment at which something else is done (field-bugs.md G19).

RRPA_RUNS=100000 tries as often as the bug that this is about needed.
"""

from __future__ import annotations

import ast
import asyncio
import pathlib
import random

import grpc
import pytest

from tests.faults.many import times
from tests.frontend.fakes import front_end

SOURCE = pathlib.Path(__file__).parent.parent.parent / "src" / "rrpa_sidecar"
RUNS = 400
AT_ONCE = 20
ROUNDS_OF_A_CONNECTION = 10


@pytest.mark.parametrize("kind", ["grpcio", "batched"])
async def test_a_call_that_is_cancelled_while_a_token_comes_ends_with_its_task(
    short_dir: pathlib.Path, seeded: random.Random, kind: str
) -> None:
    async with front_end(short_dir, kind) as front:
        streams = front.broker.streams
        base = 0

        async def some_turns() -> None:
            for _ in range(seeded.randrange(12)):
                await asyncio.sleep(0)

        async def cancel_one() -> None:
            call = front.stream()
            await call.initial_metadata()
            stream = streams[-1]
            stream.data(b"x")
            await some_turns()
            for act in seeded.sample([call.cancel, lambda: stream.data(b"y"), stream.finish], 3):
                act()
                await some_turns()
            assert await call.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.OK)

        for round_ in range(times(RUNS) // AT_ONCE):
            if round_ and round_ % ROUNDS_OF_A_CONNECTION == 0:
                await front.reconnect()  # so many cancels are a flood (batched/budget.py)
            await asyncio.gather(*(cancel_one() for _ in range(AT_ONCE)))
            async with asyncio.timeout(5):
                while front.handlers.open_calls or not all(each.left for each in streams):
                    await asyncio.sleep(0.001)
            assert {each.left for each in streams} == {1}
            streams.clear()
            if round_ == 0:
                base = len(asyncio.all_tasks())
        async with asyncio.timeout(5):
            while len(asyncio.all_tasks()) > base:
                await asyncio.sleep(0.01)


def test_no_code_relies_on_wait_for_which_may_swallow_a_cancellation() -> None:
    """asyncio.wait_for did so before Python 3.12; asyncio.timeout never does."""
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "asyncio.wait_for"
    ]
    assert not found
