"""`latency` and `first-token` as people run them, in small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.result import load

ROOT = Path(__file__).parent.parent.parent


def measured(path: Path, *argv: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks", *argv, "--quick", "--runs", "1"]
    files = ["--json", str(path / "r.json")]
    done = subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return load(path / "r.json")


def test_latency_finds_what_a_core_carries_and_measures_at_a_share_of_it(
    tmp_path: Path, program: Path
) -> None:
    small = ["--load", "10 %", "--server", "rrpa batched", "--window", "0.3"]
    (row,) = measured(tmp_path, "latency", *small)["results"]
    assert row["streams"] >= 1
    assert 0 < row["p50_us"]["median"] <= row["p99_us"]["median"] <= row["max_us"]["median"]


def test_first_token_measures_each_server_and_both_parts_of_its_way(
    tmp_path: Path, program: Path
) -> None:
    small = ["--together", "1", "--window", "0.3", "--server", "grpc.aio"]
    document = measured(tmp_path, "first-token", *small)
    alone = {row["server"]: row for row in document["results"] if row["what"] == "1 together"}
    assert set(alone) == {"rrpa batched", "grpc.aio"}
    for row in alone.values():
        assert 0 < row["in_p50_us"]["median"] < row["p99_us"]["median"]
        assert row["server_us"]["median"] > 0
