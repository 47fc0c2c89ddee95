"""Environments of peers, made with a package of our own that holds nothing."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from benchmarks.servers.peers import environments
from benchmarks.servers.peers.environments import (
    ENVIRONMENTS,
    Environment,
    NotInstalled,
    ensure,
)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """The wheel of a package `nothing` 1.0 with the module `nothing`."""
    path = tmp_path / "nothing-1.0-py3-none-any.whl"
    info = "nothing-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("nothing.py", "")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: nothing\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


def want(monkeypatch: pytest.MonkeyPatch, *requirements: str) -> None:
    row = Environment("peer", "nothing", requirements, checked="2026-11-30")
    monkeypatch.setitem(environments.ENVIRONMENTS, "peer", row)


def test_environment_is_made_once_and_again_after_an_interruption(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want(monkeypatch, str(wheel))
    said: list[str] = []
    interrupted = tmp_path / "build" / environments.folder(ENVIRONMENTS["peer"])
    (interrupted / "bin").mkdir(parents=True)
    (interrupted / "bin" / "python").write_text("half a file")

    made = ensure("peer", said.append, tmp_path / "build")
    assert made.path == str(interrupted)
    assert made.versions["nothing"] == "1.0"
    assert made.size_bytes > 0
    subprocess.run([made.program("python"), "-c", "import nothing"], check=True)
    assert said[0].startswith("install: ")
    assert said[-1].startswith("installed: peer in ")

    said.clear()
    assert ensure("peer", said.append, tmp_path / "build") == made
    assert said == []


def test_an_interruption_ends_the_installer_and_does_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want(monkeypatch, "nothing==1.0")
    pip, pid = tmp_path / "python", tmp_path / "pid"
    pip.write_text(f"#!/bin/sh\necho $$ >{pid}\necho Collecting nothing\nexec sleep 100\n")
    pip.chmod(0o755)

    def say(line: str) -> None:
        if "Collecting" in line:
            raise KeyboardInterrupt

    monkeypatch.setattr(environments.sys, "executable", str(pip))
    with pytest.raises(KeyboardInterrupt):
        ensure("peer", say, tmp_path / "build")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_what_cannot_be_installed_is_named_with_the_reason_and_leaves_a_log_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = str(tmp_path / "absent-1.0-py3-none-any.whl")
    want(monkeypatch, absent)
    with pytest.raises(NotInstalled, match=r"^peer: ERROR: .*absent-1\.0.*; all of it: .*\.log$"):
        ensure("peer", lambda line: None, tmp_path / "build")
    left = [each.suffix for each in (tmp_path / "build").iterdir()]
    assert sorted(left) == [".lock", ".log"]


def test_every_requirement_has_one_exact_version_and_the_compromised_litellm_is_not_it() -> None:
    for row in ENVIRONMENTS.values():
        assert row.requirements[0].partition("[")[0].partition("=")[0] == row.main
        for requirement in row.requirements:
            assert requirement.count("==") == 1, requirement
            assert not requirement.endswith("==1.107.0"), requirement
