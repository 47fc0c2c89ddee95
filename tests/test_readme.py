"""The README's examples run as printed, but for addresses; its links lead somewhere."""

from __future__ import annotations

import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.harness.processes import Daemon, Process, ReplayEngine, Stack, eventually

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLE = re.compile(r"<!-- example: ([\w-]+) -->\n```\w+\n(.*?)```", re.S)
EXAMPLES = dict(EXAMPLE.findall(README))


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(engine={"capacity": 4}, envoy=True) as running:
        yield running


def replaced(text: str, old: str, new: str) -> str:
    assert old in text, f"the example no longer holds {old!r}"
    return text.replace(old, new)


def run(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def python_example(stack: Stack) -> str:
    return replaced(EXAMPLES["python"], "localhost:50051", stack.daemon.grpc_address)


def test_python_example_prints_an_answer(stack: Stack) -> None:
    assert run([sys.executable, "-c", python_example(stack)])


def test_resume_example_prints_the_whole_answer_of_a_sidecar_that_is_killed() -> None:
    answer = "every byte of it once, and none of them lost or doubled"
    with Daemon() as daemon, ReplayEngine(daemon, tokens_per_second=20):
        daemon.argv[daemon.argv.index("--listen") + 1] = daemon.grpc_address
        example = replaced(EXAMPLES["resume"], "localhost:50051", daemon.grpc_address)
        example = replaced(example, 'prompt="Hello"', f"prompt={'echo:' + answer!r}")
        with subprocess.Popen([sys.executable, "-c", example], stdout=subprocess.PIPE) as caller:
            eventually(lambda: daemon.metric("rrpa_stream_bytes_total", model="test") > 9, 10)
            daemon.kill()
            daemon.start()
            assert caller.communicate(timeout=20)[0].decode() == answer
        assert caller.returncode == 0
        assert daemon.metric("rrpa_streams_resumed_total") == 1


def test_engine_example_serves_its_model(stack: Stack) -> None:
    source = replaced(EXAMPLES["engine"], "/tmp/rrpa.sock", stack.daemon.engine_socket)
    assert len([line for line in source.splitlines() if line.strip()]) <= 10
    source = replaced(source, "capacity=8", f"capacity=8, shm_dir={str(stack.daemon.shm_dir)!r}")
    # The example says nothing once it is attached; the test has to know.
    source = replaced(
        source,
        "    for job in engine.jobs()",
        "    engine.wait_serving(20) and print('ready', flush=True)\n    for job in engine.jobs()",
    )
    ask = replaced(python_example(stack), 'model="test"', 'model="shout"')
    with Process([sys.executable, "-c", source], ready="ready"):
        assert run([sys.executable, "-c", ask]) == "HELLO "


def test_grpcurl_example_prints_frames(stack: Stack) -> None:
    argv = shlex.split(replaced(EXAMPLES["grpcurl"], "localhost:50051", stack.daemon.grpc_address))
    argv[0] = str(pathlib.Path(sys.executable).parent / argv[0])
    assert "finish" in run(argv)


def test_curl_example_prints_text(stack: Stack) -> None:
    line = replaced(EXAMPLES["curl"], "envoy-here/cert.pem", stack.envoy.ca)
    argv = shlex.split(replaced(line, "localhost:8443", stack.envoy.address))
    assert run([argv[0], "-sS", *argv[1:]])


def test_curl_example_appends_what_a_broken_call_has_left_out(
    stack: Stack, tmp_path: pathlib.Path
) -> None:
    line = replaced(EXAMPLES["curl"], "envoy-here/cert.pem", stack.envoy.ca)
    argv = shlex.split(replaced(line, "localhost:8443", stack.envoy.address))
    whole = run([argv[0], "-sS", "-D", str(tmp_path / "head"), "-H", "x-resumable: 1", *argv[1:]])
    (tmp_path / "answer").write_bytes(whole.encode()[:9])
    rest = replaced(EXAMPLES["curl-resume"], "envoy-here/cert.pem", stack.envoy.ca)
    rest = replaced(rest, "localhost:8443", stack.envoy.address)
    subprocess.run(["sh", "-c", rest], cwd=tmp_path, check=True, timeout=20)
    assert (tmp_path / "answer").read_text() == whole


@pytest.mark.parametrize("page", ["README.md", "tests/README.md", "tests/faults/README.md"])
def test_links_lead_to_files_that_exist(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
        assert (path.parent / target).exists(), f"{page} links to {target}"


def test_commands_of_the_readme_are_targets_of_the_makefile() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)
    for command in re.findall(r"^make (\w+)", README, re.M):
        assert command in targets
    assert "make --no-print-directory test" in (ROOT / ".ci/run").read_text()
