"""Segments in both kinds of directory, named at random and removed afterwards."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rrpa_sidecar.shm.directory import POSIX_PATH, PlainDirectory, SegmentDirectory, open_directory
from tests.shm.support import Ids


@pytest.fixture
def ids() -> Ids:
    return Ids()


@pytest.fixture(params=["plain", "posix"])
def directory(
    request: pytest.FixtureRequest, short_dir: Path, ids: Ids
) -> Iterator[SegmentDirectory]:
    """A plain directory, and the real /dev/shm through posix_ipc."""
    made = open_directory(str(short_dir) if request.param == "plain" else POSIX_PATH)
    yield made
    ids.remove_from(made.path)


@pytest.fixture
def plain(short_dir: Path) -> PlainDirectory:
    return PlainDirectory(str(short_dir))


@pytest.fixture
def memory() -> Iterator[PlainDirectory]:
    """A plain directory on tmpfs."""
    path = f"{POSIX_PATH}/rrpa-test-{secrets.token_hex(4)}"
    os.mkdir(path)
    yield PlainDirectory(path)
    shutil.rmtree(path)
