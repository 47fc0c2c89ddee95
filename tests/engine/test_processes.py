"""The engines as processes: the ready line, signals, refusals, crashes."""

from __future__ import annotations

import json
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from rrpa_sidecar.engine.llamacpp.model_file import default_model_path
from rrpa_sidecar.pb import rrpa_pb2
from tests.engine.fake_sidecar import FakeSidecar, eventually

Started = subprocess.Popen[str]
Start = Callable[..., Started]
WAIT_S = 30


@pytest.fixture
def start() -> Iterator[Start]:
    """Start `rrpa engine …` for a fake sidecar; killed at the end if it still runs."""
    running: list[Started] = []

    def begin(kind: str, sidecar: FakeSidecar, *more: str) -> Started:
        where = ["--engine-socket", sidecar.socket, "--shm-dir", str(sidecar.shm_dir)]
        argv = [sys.executable, "-m", "rrpa_sidecar", "engine", kind, *where, *more]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        running.append(process)
        return process

    yield begin
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ready_line(process: Started) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def test_flags_of_replay_choose_text_cut_pace_delay_length_and_labels(
    sidecar: FakeSidecar, start: Start, short_dir: Path
) -> None:
    text = short_dir / "text"
    text.write_bytes(b"\xffabcdefg")
    what = ["--text-file", str(text), "--bytes-per-token", "3", "--max-tokens", "4"]
    pace = ["--prompt-delay", "0.3", "--tokens-per-second", "10"]
    labels = ["--name", "me", "--model", "a", "--capacity", "7"]
    start("replay", sidecar, *what, *pace, *labels)
    attachment = sidecar.attached()
    hello = attachment.hello
    assert (hello.engine_name, list(hello.models), hello.capacity) == ("me", ["a"], 7)
    began_ns = time.monotonic_ns()
    stream_id = sidecar.submit(attachment)[0]
    reader = sidecar.log(stream_id)
    data, end = sidecar.answer(stream_id)
    took_s = (time.monotonic_ns() - began_ns) / 1e9
    assert data == b"\xffabcdefg\xffab"
    assert (end.reason, end.completion_tokens) == (rrpa_pb2.FINISH_REASON_LENGTH, 4)
    reader.progress()
    first_s = ((reader.first_commit_ns() or 0) - began_ns) / 1e9
    assert 0.3 <= first_s < 2
    assert 0.3 + 3 * 0.1 <= took_s < 5
    reader.close()


@pytest.mark.parametrize(
    ("flag", "fewest", "most"), [("--shared-steps", 20, 30), ("--own-steps", 40, 60)]
)
def test_streams_of_replay_share_their_steps_and_bells_or_have_their_own(
    sidecar: FakeSidecar, start: Start, flag: str, fewest: int, most: int
) -> None:
    start("replay", sidecar, flag, "--tokens-per-second", "50", "--prompt-delay", "0.2")
    attachment = sidecar.attached()
    ids = [sidecar.submit(attachment, slot=slot, max_tokens=20)[0] for slot in (0, 1)]
    logs = [sidecar.log(each) for each in ids]
    rings = 0
    with socket.fromfd(sidecar.bell.fileno(), socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
        while not all(log.progress()[1] for log in logs) or select.select([bell], [], [], 0.1)[0]:
            if select.select([bell], [], [], 0.1)[0]:
                bell.recv(16)
                rings += 1
    for log in logs:
        log.close()
    assert fewest <= rings <= most


REPLAY = ("replay", "--tokens-per-second", "100", "--max-tokens", "60")
LLAMACPP = ("llamacpp", "--threads", "1", "--max-tokens", "30")


@pytest.mark.parametrize("argv", [REPLAY, LLAMACPP], ids=lambda argv: argv[0])
def test_engine_gives_the_same_answer_while_its_sidecar_restarts_and_says_a_line_each_way(
    sidecar: FakeSidecar, start: Start, argv: tuple[str, ...]
) -> None:
    process = start(*argv[:1], sidecar, *argv[1:])
    assert ready_line(process).startswith("rrpa engine ready")
    attachment = sidecar.attached()
    request = {"prompt": "Once upon a time", "temperature": 0.0}
    expected = sidecar.answer(sidecar.submit(attachment, **request)[0])
    stream_id = sidecar.submit(attachment, slot=1, **request)[0]
    reader = sidecar.log(stream_id)
    eventually(lambda: reader.progress()[0] > 0)
    attachment = sidecar.restart()
    sidecar.adopt(attachment, stream_id, slot=0)
    size, _ = reader.progress()
    eventually(lambda: reader.progress()[0] > size)
    sidecar.restart()
    assert sidecar.answer(stream_id) == expected
    reader.close()
    process.terminate()
    err = process.communicate(timeout=WAIT_S)[1]
    lost = ["not attached to" in line for line in err.splitlines()]
    assert lost == [False, True, False, True, False], err
    assert process.returncode == 0


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_streams_and_leaves_no_file(
    sidecar: FakeSidecar, start: Start, sent: signal.Signals
) -> None:
    process = start("replay", sidecar, "--name", "me", "--model", "a", "--model", "b")
    assert ready_line(process) == "rrpa engine ready name=me models=a,b"
    attachment = sidecar.attached()
    reader = sidecar.log(sidecar.submit(attachment, max_tokens=1_000_000)[0])
    eventually(lambda: reader.progress()[0] > 0)
    process.send_signal(sent)
    assert process.wait(WAIT_S) == 0
    end = reader.progress()[1]
    assert end is not None
    assert end.code == grpc.StatusCode.UNAVAILABLE.value[0]
    assert sidecar.directory.names() == []
    reader.close()


def test_signal_while_the_sidecar_is_missing_ends_the_engine(short_dir: Path, start: Start) -> None:
    with FakeSidecar(short_dir) as sidecar:
        sidecar.stop()
        process = start("replay", sidecar)
        assert process.stderr is not None
        assert "not attached" in process.stderr.readline()
        process.terminate()
        assert process.wait(WAIT_S) == 0
        assert sidecar.directory.names() == []


def test_refused_engine_exits_with_1_and_the_sidecars_sentence(
    short_dir: Path, start: Start
) -> None:
    refusal = (grpc.StatusCode.FAILED_PRECONDITION, "mount the same volume into both")
    with FakeSidecar(short_dir, refuse=refusal) as sidecar:
        process = start("replay", sidecar)
        out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (1, "")
    assert err == "rrpa: mount the same volume into both\n"


def test_crash_of_a_script_is_a_lost_writer(sidecar: FakeSidecar, start: Start) -> None:
    process = start("replay", sidecar)
    attachment = sidecar.attached()
    script = {"tokens": ["61", "62", "63"], "crash_after": 2}
    stream_id, _ = sidecar.submit(attachment, prompt="replay:" + json.dumps(script))
    reader = sidecar.log(stream_id)
    assert process.wait(WAIT_S) == 70
    eventually(reader.writer_gone)
    assert reader.progress() == (2, None)
    assert reader.read(0, 10) == b"ab"
    reader.close()


def test_model_that_is_no_model_is_one_line(
    sidecar: FakeSidecar, start: Start, short_dir: Path
) -> None:
    wrong = short_dir / "wrong.gguf"
    wrong.write_bytes(b"no model" * 1000)
    process = start("llamacpp", sidecar, "--model-path", str(wrong))
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (1, "")
    assert err.startswith(f"rrpa: cannot load the model {wrong}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("chosen", ["default", "by path"])
def test_llamacpp_serves_and_ends_on_a_signal(
    sidecar: FakeSidecar, start: Start, short_dir: Path, chosen: str
) -> None:
    flags, name = [], "gemma-3-270m"
    if chosen == "by path":
        (short_dir / "any-name.gguf").symlink_to(default_model_path())
        flags, name = ["--model-path", str(short_dir / "any-name.gguf")], "any-name"
    process = start("llamacpp", sidecar, "--name", "me", "--threads", "1", *flags)
    assert ready_line(process) == f"rrpa engine ready name=me models={name}"
    attachment = sidecar.attached()
    assert attachment.hello.capacity == 4
    stream_id, _ = sidecar.submit(attachment, prompt="Once upon a time", max_tokens=500)
    reader = sidecar.log(stream_id)
    eventually(lambda: reader.progress()[0] > 0)
    process.terminate()
    err = process.communicate(timeout=WAIT_S)[1]
    assert process.returncode == 0
    assert [line for line in err.splitlines() if "attached to" not in line] == []
    assert sidecar.directory.names() == []
    reader.close()


def test_signal_that_came_while_a_model_loaded_is_kept() -> None:
    code = (
        "import os, signal, time\n"
        "from rrpa_sidecar.engine.host import StopSignals\n"
        "signals = StopSignals()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "while not signals.raised: time.sleep(0.001)\n"
        "signals.call(lambda: print('stopped'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=WAIT_S)
    assert (done.returncode, done.stdout) == (0, b"stopped\n")
