"""`python -m benchmarks` as people run it: real processes, and none of them left."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.load.client import Load, LoadClient, LoadError, build
from benchmarks.registry import BENCHMARKS
from benchmarks.result import load
from benchmarks.servers import CREATE_STREAM, MODEL, grpc_message
from rrpa_sidecar.pb import rrpa_pb2
from tests.harness.processes import Stack, eventually

ROOT = Path(__file__).parent.parent.parent
SMALLEST = ("paced", "--quick", "--load", "64x50", "--server", "rrpa batched", "--runs", "1")


@pytest.fixture(scope="module")
def _client() -> None:
    """The load client needs a C compiler and libnghttp2-dev, which `make test` installs."""
    try:
        build()
    except LoadError as exc:
        pytest.skip(str(exc))


@contextmanager
def benchmarks(*argv: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks", *argv],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def directories_of(pid: int) -> list[Path]:
    """Return a run's private directories that are still there."""
    places = (Path("/tmp"), Path("/dev/shm"))
    return [path for place in places for path in place.glob(f"rrpa-bench-{pid}-*")]


def processes_of(pid: int) -> list[str]:
    """Return the command lines of processes that use a run's private directories."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found.append(f"{entry.name}: {line}")
    return [line for line in found if f"/rrpa-bench-{pid}-" in line]


def left_by(pid: int) -> list[str]:
    return [*map(str, directories_of(pid)), *processes_of(pid)]


def test_list_names_every_benchmark_and_how_long_it_takes() -> None:
    with benchmarks("list") as child:
        out, _ = child.communicate(timeout=20)
    assert child.returncode == 0
    for each in BENCHMARKS.values():
        assert f"({each.lasts})" in out
        assert any(line.startswith(f"{each.name} ") for line in out.splitlines())


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["nothing"], "No such command 'nothing'"),
        (["paced", "--load", "1x1"], "'1x1' is not one of"),
        (["paced", "--runs", "0"], "0 is not in the range"),
    ],
)
def test_wrong_usage_is_a_sentence_and_exit_2(argv: list[str], said: str) -> None:
    with benchmarks(*argv) as child:
        _, err = child.communicate(timeout=20)
    assert child.returncode == 2
    assert said in err


@pytest.mark.usefixtures("_client")
def test_a_run_measures_saves_draws_and_leaves_nothing(tmp_path: Path) -> None:
    files = tmp_path / "paced.json", tmp_path / "paced.svg"
    argv = ("--json", str(files[0]), "--picture", str(files[1]), "--window", "0.5")
    with benchmarks(*SMALLEST, *argv) as child:
        out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    (row, *_) = load(files[0])["results"]
    assert row["server"] == "rrpa batched"
    assert {"server_us", "engine_us", "envoy_us", "client_us"} <= set(row)
    # It may be behind on a busy machine, but it cannot be ahead of its engine.
    assert 0 < row["pace"]["median"] < 1.2
    assert row["server_us"]["median"] > 0
    assert "rrpa batched" in out
    assert files[1].read_text().startswith("<?xml")
    assert not left_by(child.pid)


@contextmanager
def measuring() -> Iterator[subprocess.Popen[str]]:
    """A run in which all processes have been started and a load begins."""
    with benchmarks(*SMALLEST) as child:
        assert child.stderr is not None
        while "round 1" not in (line := child.stderr.readline()):
            assert line, "the run ended before it measured"
        yield child


@pytest.mark.usefixtures("_client")
def test_a_run_that_is_interrupted_leaves_nothing() -> None:
    with measuring() as child:
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "interrupted" in err
    assert not left_by(child.pid)


@pytest.mark.usefixtures("_client")
def test_a_run_that_is_killed_leaves_no_process() -> None:
    with measuring() as child:
        child.kill()
        child.wait()
        eventually(lambda: not processes_of(child.pid), what="the kernel ends all of it")
    for path in directories_of(child.pid):
        shutil.rmtree(path)


@pytest.mark.usefixtures("_client")
def test_client_and_sidecar_count_the_same_messages(short_dir: Path) -> None:
    streams, tokens = 8, 50
    request = rrpa_pb2.CreateStreamRequest(model=MODEL, prompt="go", max_tokens=tokens)
    text = short_dir / "text"
    text.write_bytes(b"word ")
    engine = {"tokens_per_second": 100, "text_file": text, "bytes_per_token": 5}
    with Stack(daemon={"envoy_frontend": "batched"}, engine=engine) as stack:
        asked = Load(
            connect=f"unix:{stack.daemon.envoy_socket}",
            path=CREATE_STREAM,
            body=grpc_message(request.SerializeToString()),
            streams=streams,
            warm_s=0,
            seconds=5,
            until_ended=True,
            text=b"word ",
        )
        with LoadClient(asked, short_dir) as client:
            client.begin()
            client.wait_end()
            report = client.report()
        frames = stack.daemon.metric("rrpa_frames_total")
    assert report["total"]["messages"] == streams * tokens
    assert not report["errors"]
    assert frames == streams * tokens
