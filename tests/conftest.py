"""Fixtures for all tests."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.harness.leftovers import Leftovers

# An example has no time limit: hypothesis' own of 200 ms fails on a machine that others use too.
# What must be fast has a test that says so.
settings.register_profile(
    "rrpa", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("rrpa")


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """The run ends with the directories, segments and processes it began with."""
    leftovers = Leftovers()
    yield
    found = leftovers.found()
    assert not found, "left behind by this run:\n" + "\n".join(found)


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A directory with a path short enough for sockets (AF_UNIX ends at 107 bytes)."""
    path = tempfile.mkdtemp(dir="/tmp", prefix="rrpa-")
    yield Path(path)
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def seeded() -> random.Random:
    """Random numbers; the seed is printed with a failure and can be given: RRPA_SEED=7."""
    seed = int(os.environ.get("RRPA_SEED", "0")) or random.SystemRandom().getrandbits(32)
    print(f"RRPA_SEED={seed}")
    return random.Random(seed)
