"""The dump tells what a segment is, to a person."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rrpa_sidecar.shm import dump, layout
from rrpa_sidecar.shm.directory import PlainDirectory
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.table import TableWriter
from tests.shm.support import path_of, poke, poke_cursor, writer


def said(capsys: pytest.CaptureFixture[str], path: object) -> tuple[int, str, str]:
    code = dump.main([str(path)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_log_is_told_live_lost_and_final(
    plain: PlainDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    made = writer(plain, "0" * 32)
    path = path_of(plain, made.stream_id)
    made.write("Bär\n".encode())
    code, out, _ = said(capsys, path)
    assert code == 0
    assert "held by its writer" in out
    assert "5 of 65536 bytes committed" in out
    assert r"b'B\xc3\xa4r\n'" in out
    made.close()
    assert "lost: the writer is gone" in said(capsys, path)[1]
    done = writer(plain, "1" * 32)
    done.finish(End(13, text="broke", stop_sequence=b"##"))
    code, out, _ = said(capsys, path_of(plain, "1" * 32))
    assert code == 0
    assert "lease free" in out
    assert "code=13" in out
    assert "text='broke'" in out
    assert "lost" not in out
    assert all(f" {field.name} " in out for field in layout.LOG_FIELDS)


def test_a_table_is_told(plain: PlainDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    table = TableWriter.create(plain, "0" * 32, 9, bytes(16))
    table.begin(7)
    table.set(7, 99, True)
    code, out, _ = said(capsys, f"{plain.path}/rrpa_table_{'0' * 32}")
    assert code == 0
    assert "1 of 9 are not zero" in out
    assert "7 log 1 of this slot: 99 bytes, ended" in out
    table.close()


def test_a_broken_rule_is_the_last_line(
    plain: PlainDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    writer(plain, "0" * 32).close()
    poke_cursor(plain, "0" * 32, 1 << 40)
    code, out, _ = said(capsys, path_of(plain, "0" * 32))
    assert code == 3
    assert out.splitlines()[-1].startswith("broken rule: cursor 1099511627776")
    poke(plain, "0" * 32, 8, b"\x63")
    assert "format version 99" in said(capsys, path_of(plain, "0" * 32))[1]


@pytest.mark.parametrize("kind", ["other", "empty", "fifo", "directory", "link", "missing"])
def test_what_is_neither_gets_one_line(
    short_dir: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = short_dir / "x"
    makers = {
        "other": lambda: path.write_bytes(b"\x7fELF" + b"x" * 100),
        "empty": path.touch,
        "fifo": lambda: os.mkfifo(path),
        "directory": path.mkdir,
        "link": lambda: path.symlink_to("/etc/hostname"),
        "missing": lambda: None,
    }
    makers[kind]()
    code, out, err = said(capsys, path)
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert "neither a log nor a table" in err or "cannot be opened" in err


def test_a_log_cut_short_is_a_broken_rule(
    plain: PlainDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    writer(plain, "0" * 32).close()
    os.truncate(path_of(plain, "0" * 32), 100)
    code, out, _ = said(capsys, path_of(plain, "0" * 32))
    assert code == 3
    assert "broken rule" in out


def test_the_command_says_how_it_is_called(plain: PlainDirectory) -> None:
    command = [sys.executable, "-m", "rrpa_sidecar.shm.dump"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("usage: ")
    writer(plain, "0" * 32).close()
    command.append(str(path_of(plain, "0" * 32)))
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0
    assert run.stderr == ""
