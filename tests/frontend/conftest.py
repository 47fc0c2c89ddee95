"""A front end for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.frontend.fakes import Front, front_end


@pytest_asyncio.fixture
async def front(short_dir: Path) -> AsyncIterator[Front]:
    async with front_end(short_dir) as running:
        yield running
