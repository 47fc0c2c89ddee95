"""`rrpa envoy-config` as people call it."""

from __future__ import annotations

import pathlib
import shlex
import subprocess
import sys

import yaml


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rrpa_sidecar", "envoy-config", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", **env},
    )


def test_it_writes_checks_and_prints_the_next_command(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "new" / "a folder"
    done = run("--out", str(out), "--envoy-listen", "127.0.0.1:9443", RRPA_QUEUE_LIMIT="5")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in out.iterdir()) == [
        "cert.pem",
        "envoy.yaml",
        "key.pem",
        "rrpa.pb",
    ]
    assert "checked with" in done.stdout
    command = shlex.split(done.stdout.splitlines()[-1].removeprefix("next: "))
    checked = subprocess.run([*command, "--mode", "validate"], capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr
    text = (out / "envoy.yaml").read_text()
    assert "port_value: 9443" in text
    assert f"max_requests: {2 * (128 + 5) + 4096}" in text


def test_second_run_keeps_the_certificate_and_changes_the_rest(tmp_path: pathlib.Path) -> None:
    assert run("--out", str(tmp_path)).returncode == 0
    before = (tmp_path / "cert.pem").read_bytes()
    done = run("--out", str(tmp_path), "--envoy-admin", "127.0.0.1:9999")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "cert.pem").read_bytes() == before
    assert "cert.pem" not in done.stdout
    admin = yaml.safe_load((tmp_path / "envoy.yaml").read_text())["admin"]
    assert admin["address"]["socket_address"]["port_value"] == 9999


def test_it_warns_of_settings_under_which_nobody_can_resume_in_time(tmp_path: pathlib.Path) -> None:
    assert "warning" not in run("--out", str(tmp_path)).stdout
    done = run("--out", str(tmp_path), "--resume-window", "0.2")
    assert done.returncode == 0, done.stderr
    assert "warning: cluster sidecar: a connection (connect_timeout) may take 0.5 s" in done.stdout


def test_wrong_settings_are_all_reported_with_exit_2(tmp_path: pathlib.Path) -> None:
    done = run("--out", str(tmp_path), "--envoy-admin", "0.0.0.0:1", "--envoy-health-timeout", "x")
    assert done.returncode == 2
    assert "--envoy-admin" in done.stderr
    assert "--envoy-health-timeout" in done.stderr
    assert not list(tmp_path.iterdir())


def test_directory_that_cannot_be_written_is_one_line_and_exit_1(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("--out", str(tmp_path / "file" / "below"))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
