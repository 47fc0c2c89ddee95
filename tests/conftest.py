"""Fixtures for all tests, and how a run is shared among workers and leaves nothing behind."""

from __future__ import annotations

import os
import pathlib
import random
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.harness.leftovers import MARK, Leftovers, note_directories
from tests.harness.workers import Room, count_for, group_of, is_worker, rank

# An example has no time limit: hypothesis' own of 200 ms fails on a machine that others use too.
# What must be fast has a test that says so.
settings.register_profile(
    "rrpa", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("rrpa")

LEFTOVERS = pytest.StashKey[Leftovers]()
ROOM = pytest.StashKey[Room]()


def pytest_configure(config: pytest.Config) -> None:
    if not is_worker(config):
        config.stash[LEFTOVERS] = Leftovers()
    note_directories()
    config.stash[ROOM] = Room(pathlib.Path(os.environ[MARK]))


def pytest_unconfigure(config: pytest.Config) -> None:
    if LEFTOVERS in config.stash:
        config.stash[LEFTOVERS].forget()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """The run ends with the directories, segments and processes it began with."""
    if LEFTOVERS not in session.config.stash:
        return
    found = session.config.stash[LEFTOVERS].found()
    if not found:
        return
    told = pytest.TestReport(
        nodeid="tests",
        location=("tests", None, "left behind by this run"),
        keywords={},
        outcome="failed",
        longrepr="left behind by this run:\n" + "\n".join(found),
        when="teardown",
    )
    session.config.hook.pytest_runtest_logreport(report=told)
    session.exitstatus = pytest.ExitCode.TESTS_FAILED


# --- Workers --------------------------------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return count_for(config.args)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        """Gives each worker whole groups, in the order in which the tests were sorted."""

        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return ByGroup(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if is_worker(config):
        items.sort(key=lambda item: (rank(item.nodeid), group_of(item.nodeid)))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    # Before the timeout's clock starts.
    with item.config.stash[ROOM].entered(alone=item.get_closest_marker("alone") is not None):
        return (yield)


# --- Fixtures -------------------------------------------------------------------------------------


@pytest.fixture
def short_dir() -> Iterator[pathlib.Path]:
    """A directory with a path short enough for sockets (AF_UNIX ends at 107 bytes)."""
    path = tempfile.mkdtemp(dir="/tmp", prefix="rrpa-")
    yield pathlib.Path(path)
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def seeded() -> random.Random:
    """Random numbers; the seed is printed with a failure and can be given: RRPA_SEED=7."""
    seed = int(os.environ.get("RRPA_SEED", "0")) or random.SystemRandom().getrandbits(32)
    print(f"RRPA_SEED={seed}")
    return random.Random(seed)
