"""`python -m benchmarks` as people run it: real processes, and none of them left."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.load.client import Load, LoadClient, LoadError, build
from benchmarks.needs import REMEDY
from benchmarks.registry import BENCHMARKS
from benchmarks.result import load
from benchmarks.servers import CREATE_STREAM, MODEL, grpc_message
from rrpa_sidecar.pb import rrpa_pb2
from tests.harness.processes import Stack, eventually

ROOT = Path(__file__).parent.parent.parent
STRANGE = {"name": "paced", "machine": {}, "load": {}, "results": [{"a": 1}], "ratios": {}}
"""A result by its form, whose rows `paced` cannot show."""
SMALLEST = ("paced", "--quick", "--load", "64x50", "--server", "rrpa batched", "--runs", "1")


@pytest.fixture(scope="module")
def _client() -> None:
    """The load client needs a C compiler and libnghttp2-dev, which `make test` installs."""
    try:
        build()
    except LoadError as exc:
        pytest.skip(str(exc))


@contextmanager
def benchmarks(
    *argv: str, path: Path | None = None, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run the command. path: a directory whose modules come first."""
    paths = [str(path)] if path else []
    paths += [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks", *argv],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(env or {})},
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
    assert err.count("\n") == 1
    assert err.endswith(" --help\n")


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    for flag in ("--json", "--picture"):
        with benchmarks("micro", flag, str(tmp_path / "file" / "below")) as child:
            _, err = child.communicate(timeout=20)
        assert child.returncode == 2
        assert err.startswith(f"python -m benchmarks: {flag}: cannot write {tmp_path}")
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    "content", [b"words", b"\xff", b"{}", json.dumps(STRANGE).encode()], ids=str
)
def test_show_says_in_one_line_what_is_no_result(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file.json"
    file.write_bytes(content)
    with benchmarks("show", str(file)) as child:
        out, err = child.communicate(timeout=20)
    assert (child.returncode, out) == (2, "")
    assert str(file) in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("package", ["click", "rich", "h11", "rrpa_sidecar"])
def test_a_package_that_is_missing_is_named_with_the_remedy(tmp_path: Path, package: str) -> None:
    # A finder before all others that knows of no such package.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {package!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
    )
    with benchmarks("paced", "--help", path=tmp_path) as child:
        _, err = child.communicate(timeout=20)
    assert child.returncode == 1
    assert err == f"benchmarks: the package {package} is not installed here; {REMEDY}\n"


def test_the_list_needs_no_package_of_any_benchmark() -> None:
    asked = "import sys; from benchmarks.cli import cli; cli(['--help'], standalone_mode=False);"
    asked += " sys.exit(any(name in sys.modules for name in ('h11', 'matplotlib', 'grpc')))"
    done = subprocess.run([sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in BENCHMARKS)


def test_a_compiler_that_is_missing_is_said_before_a_server_starts(tmp_path: Path) -> None:
    with benchmarks(*SMALLEST, env={"CC": str(tmp_path / "none")}) as child:
        _, err = child.communicate(timeout=20)
    assert child.returncode == 1
    *_, last = err.splitlines()
    assert last.startswith("paced failed: load client: no C compiler")
    assert "install gcc libc6-dev libnghttp2-dev" in last
    assert "starting" not in err


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
    assert "measured by python -m benchmarks paced --quick --runs 1 --load 64x50" in out
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
        for _ in range(3):  # people press it again
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
    # On a busy machine two tokens may share a frame.
    assert 0 < report["total"]["messages"] <= streams * tokens
    assert report["total"]["bytes"] == streams * tokens * len("word ")
    assert not report["errors"]
    assert frames == report["total"]["messages"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["cpu"], "expected: python -m benchmarks.cpu PID SECONDS"),
        (["cpu", "x", "y"], "expected: python -m benchmarks.cpu PID SECONDS"),
        (["cpu", "4194304", "1"], "process 4194304 has no CPU clock: it has ended"),
        (
            ["servers.peers.grpcaio_shapes", "--help"],
            "expected: python -m benchmarks.servers.peers.grpcaio_shapes, without arguments",
        ),
    ],
)
def test_the_small_tools_say_in_one_line_what_they_expect(argv: list[str], said: str) -> None:
    module, *rest = argv
    command = [sys.executable, "-m", f"benchmarks.{module}", *rest]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"{said}\n"
