"""`rrpa demo` as people run it: the real command, real components, the replay engine."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from rrpa_sidecar.cli.demo_call import Seen
from rrpa_sidecar.cli.demo_screen import Screen
from tests.harness.processes import Process, eventually

LINE = re.compile(
    r"first token [\d.]+ ms \(engine [\d.]+, sidecar [\d.]+, Envoy [\d.]+\), [\d.]+ tokens/s,"
    r" (\d+) bytes, (\d+) frames"
)
DEMO = [sys.executable, "-m", "rrpa_sidecar", "demo", "--engine", "replay"]
ENDLESS = ["--max-tokens", "1000000"]
BIN = pathlib.Path(sys.executable).parent


class Demo(Process):
    """A running demo; `ready` is what it prints first of what the test waits for."""

    def __init__(self, *arguments: str):
        super().__init__([*DEMO, *arguments], ready="-")

    def wait_ready(self, timeout_s: float = 30.0) -> None:
        """The test says what it waits for."""

    def read_until(self, word: str) -> str:
        """Return stdout up to and including `word`."""
        assert self._child is not None
        assert self._child.stdout is not None
        text = ""
        while word not in text:
            assert select.select([self._child.stdout], [], [], 30)[0], self.said(text.encode())
            part = os.read(self._child.stdout.fileno(), 65536)
            assert part, self.said(text.encode())
            text += part.decode("utf-8", "replace")
        return text

    def directories(self) -> list[pathlib.Path]:
        name = f"rrpa-demo-{self.pid}-*"
        return [*pathlib.Path("/tmp").glob(name), *pathlib.Path("/dev/shm").glob(name)]

    def children(self) -> dict[str, int]:
        """Return a word that names each process that works for this demo, and its id."""
        found = {}
        for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = entry.read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if f"rrpa-demo-{self.pid}-" in line:
                words = [word for word in ("serve", "replay", "admin-address") if word in line]
                found[words[0] if words else line] = int(entry.parent.name)
        return found

    def assert_nothing_is_left(self) -> None:
        eventually(lambda: not self.children(), 10, "no process of the demo is left")
        assert self.directories() == []


def test_line_says_what_each_hop_added_and_the_parts_are_the_whole() -> None:
    seen = Seen(asked_s=10.0, arrivals_s=[10.5, 10.6, 10.7], size_bytes=12, tokens=5)
    seen.server_timing = "queue;dur=100.0, engine;dur=300.0, sidecar;dur=2.5"
    assert seen.line() == (
        "first token 500.0 ms (engine 300.0, sidecar 102.5, Envoy 97.5), 20.0 tokens/s,"
        " 12 bytes, 3 frames"
    )


def test_a_step_that_takes_longer_than_a_second_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Screen().step("waiting"):
        eventually(lambda: "waiting ...\n" in capsys.readouterr().err, 5)
    assert re.search(r"^waiting: \d\.\d s$", capsys.readouterr().err, re.M)


@pytest.fixture
def streaming() -> Iterator[Demo]:
    """A demo in the middle of an answer without end."""
    with Demo(*ENDLESS) as demo:
        demo.read_until("The road is short")
        yield demo


def test_it_prints_the_answer_then_one_line_of_numbers() -> None:
    done = subprocess.run(
        [*DEMO, "--prompt", "echo:Grüße, 世界", "--max-tokens", "40"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    answer, empty, line = done.stdout.decode().splitlines()
    assert answer == "Grüße, 世界"
    assert not empty
    numbers = LINE.fullmatch(line)
    assert numbers, line
    assert int(numbers[1]) == len(answer.encode())
    assert b"\x1b" not in done.stdout + done.stderr, "a pipe gets plain text"
    assert b"starting the sidecar: " in done.stderr
    assert 'asking "echo:Grüße, 世界"' in done.stderr.decode()


@pytest.mark.parametrize(("sig", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_in_mid_answer_ends_all_of_it(streaming: Demo, sig: int, code: int) -> None:
    assert len(streaming.children()) == 3
    assert streaming.directories()
    streaming.signal(sig)
    assert streaming.wait() == code
    streaming.assert_nothing_is_left()
    assert "Traceback" not in streaming.stderr


def test_second_ctrl_c_does_not_stop_the_cleaning_up(streaming: Demo) -> None:
    for _ in range(5):
        streaming.signal(signal.SIGINT)
        time.sleep(0.01)  # two signals at once count as one
    assert streaming.wait() == 130
    streaming.assert_nothing_is_left()


def test_signal_while_it_starts_leaves_nothing() -> None:
    for delay_s in (0.3, 0.5, 0.7):
        demo = Demo(*ENDLESS)
        demo.launch()
        time.sleep(delay_s)  # wherever it is by then
        demo.signal(signal.SIGTERM)
        assert demo.wait() in (143, -signal.SIGTERM)
        demo.assert_nothing_is_left()
        demo.stop()


def test_killed_demo_leaves_no_process(streaming: Demo) -> None:
    directories = streaming.directories()
    streaming.kill()
    eventually(lambda: not streaming.children(), 15, "the children have ended")
    for directory in directories:
        subprocess.run(["rm", "-r", directory], check=True)


@pytest.mark.parametrize(
    ("who", "name"),
    [("serve", "the sidecar"), ("replay", "the engine"), ("admin-address", "Envoy")],
)
def test_component_that_dies_is_named_and_all_ends(streaming: Demo, who: str, name: str) -> None:
    os.kill(streaming.children()[who], signal.SIGKILL)
    assert streaming.wait() == 1
    assert f"rrpa: {name} ended by itself (SIGKILL)" in streaming.stderr
    streaming.assert_nothing_is_left()
    assert "Traceback" not in streaming.stderr


def test_component_that_cannot_start_is_quoted(tmp_path: pathlib.Path) -> None:
    (tmp_path / "uvloop.py").write_text("raise ImportError('this uvloop is broken')\n")
    (tmp_path / "posix_ipc.py").write_text("raise ImportError('this posix_ipc is broken')\n")
    done = subprocess.run(
        DEMO,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 1
    assert re.search(r"rrpa: the (sidecar|engine) ended by itself \(exit code 1\)", done.stderr)
    assert "is broken" in done.stderr


def test_stay_prints_commands_that_work_and_ctrl_c_is_a_good_end() -> None:
    prompt = """It's "so"\\n\nGrüße"""
    with Demo("--stay", "--prompt", f"echo:{prompt}") as demo:
        text = demo.read_until("Running until Ctrl-C.")
        commands = re.split(r"^# (?:curl|grpcurl|Python|Metrics).*$", text, flags=re.M)[1:]
        commands[-1] = commands[-1].partition("Running")[0]
        assert len(commands) == 4
        outputs = [
            subprocess.run(
                ["bash", "-ec", command],
                capture_output=True,
                text=True,
                check=False,
                timeout=30,
                env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
            )
            for command in commands
        ]
        for output in outputs:
            assert output.returncode == 0, output
        curl, grpcurl, python, metrics = (output.stdout for output in outputs)
        assert curl == prompt
        assert '"finish"' in grpcurl
        assert python == curl
        assert 'rrpa_streams_total{code="OK",model="test"}' in metrics
        demo.signal(signal.SIGINT)
        assert demo.wait() == 0
        demo.assert_nothing_is_left()


def test_reader_that_leaves_early_is_no_error() -> None:
    demo = subprocess.Popen([*DEMO, *ENDLESS], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert demo.stdout is not None
    assert demo.stderr is not None
    assert demo.stdout.read(20)
    demo.stdout.close()
    errors = demo.stderr.read().decode()
    demo.stderr.close()
    assert demo.wait() == 0
    assert "Traceback" not in errors
    assert "Broken pipe" not in errors


def test_terminal_gets_a_moving_sign() -> None:
    leader, follower = pty.openpty()
    demo = subprocess.Popen(
        [*DEMO, "--max-tokens", "1"], stdout=follower, stderr=follower, stdin=follower
    )
    os.close(follower)
    seen = b""
    while select.select([leader], [], [], 30)[0]:
        try:
            part = os.read(leader, 65536)
        except OSError:  # EIO: the last writer is gone
            break
        seen += part
    os.close(leader)
    assert demo.wait() == 0
    assert b"\x1b[" in seen
    assert b"first token" in seen


@pytest.mark.skipif(
    importlib.util.find_spec("cyllama") is None, reason="needs the extra [llamacpp]"
)
def test_real_model_answers() -> None:
    argv = [sys.executable, "-m", "rrpa_sidecar", "demo", "--max-tokens", "24"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stderr
    *answer, empty, line = done.stdout.splitlines()
    assert not empty
    numbers = LINE.fullmatch(line)
    assert numbers, line
    assert len("\n".join(answer).encode()) == int(numbers[1])
    assert 10 <= int(numbers[2]) <= 24
