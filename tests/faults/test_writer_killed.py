"""An engine that is killed after each numbered step of FORMAT.md, as its client sees it.

What a reader of the log sees is in tests/shm/test_death.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.conformance.callers import Answer, Request
from tests.faults.dying_engine import FIRST, SECOND
from tests.faults.streams import Streams
from tests.harness.dying import Death
from tests.harness.processes import Process, Stack, eventually

WHOLE = FIRST + SECOND
DEATHS = {
    Death(1): b"",
    Death(2): b"",
    Death(3): b"",
    Death(4): b"",
    Death(5): b"",
    Death(6): b"",
    Death(7): b"",
    Death(8): FIRST,
    Death(9): FIRST,
    Death(10): FIRST,
    Death(11): FIRST,
    Death(6, 2, half=True): FIRST,
    Death(6, 2): FIRST,
    Death(7, 2): FIRST,
    Death(8, 2): WHOLE,
    Death(9, 2): WHOLE,
    Death(10, 2): WHOLE,
    Death(11, 2): WHOLE,
    Death(12): WHOLE,
    Death(13): WHOLE,
    Death(14): WHOLE,
    Death(15): WHOLE,
    Death(16): WHOLE,
}
"""What is committed at each death. From step 13 on the stream has ended, whatever follows."""


@pytest.fixture(scope="module", params=["grpcio", "batched"])
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    daemon = {
        "listen_frontend": request.param,
        "stream_bytes": "128KiB",
        "shm_bytes": 2 * len(DEATHS) * 128 * 1024,
    }
    with Stack(daemon, engine=None) as running:
        yield running


@pytest.fixture
def answers(stack: Stack) -> dict[Death, Answer]:
    """What a client of each of these engines gets."""
    daemon = stack.daemon
    deaths = [f"{death.step}:{death.times}:{int(death.half)}" for death in DEATHS]
    argv = [sys.executable, "-m", "tests.faults.dying_engine"]
    argv += [daemon.engine_socket, str(daemon.shm_dir), *deaths]
    with Process(argv, ready="dying engines ready") as engines:
        requests = [Request(model=str(death), prompt="die") for death in DEATHS]
        with Streams(daemon.grpc_address, requests) as streams:
            got = dict(zip(DEATHS, streams.result(), strict=True))
        assert engines.wait() == 0
    return got


def test_a_client_gets_the_committed_prefix_and_the_code_of_every_step_at_which_an_engine_dies(
    stack: Stack, answers: dict[Death, Answer]
) -> None:
    for death, committed in DEATHS.items():
        answer = answers[death]
        assert answer.data == committed, death
        assert answer.trailers["rrpa-offset"] == [str(len(committed))], death
        if death.step >= 13:
            assert (answer.code, answer.complete) == ("OK", True), death
        else:
            assert (answer.code, answer.finish) == ("UNAVAILABLE", None), (death, answer.text)
    # Logs, tables, and what was just being born.
    eventually(lambda: not list(stack.daemon.shm_dir.glob("*")), what="no file is left")
    assert stack.daemon.metric("rrpa_active_streams") == 0
    assert stack.daemon.metric("rrpa_engines_attached") == 0
