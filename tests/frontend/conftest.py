"""A front end for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.frontend.fakes import Front, front_end


@pytest_asyncio.fixture(params=["grpcio", "batched"])
async def front(request: pytest.FixtureRequest, short_dir: Path) -> AsyncIterator[Front]:
    """Each of the two."""
    async with front_end(short_dir, request.param) as running:
        yield running


@pytest_asyncio.fixture
async def grpcio_front(short_dir: Path) -> AsyncIterator[Front]:
    async with front_end(short_dir, "grpcio") as running:
        yield running


@pytest_asyncio.fixture
async def batched_front(short_dir: Path) -> AsyncIterator[Front]:
    async with front_end(short_dir, "batched") as running:
        yield running
