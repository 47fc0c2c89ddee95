"""The smallest run of the benchmarks that need no load client: they measure, and leave nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import token_path
from benchmarks.registry import BENCHMARKS
from benchmarks.result import load
from tests.benchmarks.test_command import benchmarks, directories_of, processes_of

SMALLEST = {
    "micro": ("--steps", "2"),
    "start": ("--quick",),
    "soak": ("--minutes", "0.05", "--fault", "kill sidecar"),
}


@pytest.mark.parametrize("name", SMALLEST)
def test_it_measures_saves_draws_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    files = [str(tmp_path / "r.json"), str(tmp_path / "r.svg")]
    options = (*SMALLEST[name], "--runs", "1", "--json", files[0], "--picture", files[1])
    with benchmarks(name, *options) as child:
        out, said = child.communicate(timeout=100)
        assert child.returncode == 0, said
        assert processes_of(child.pid) == []
        assert directories_of(child.pid) == []
    document = load(Path(files[0]))
    assert document["name"] == name
    assert len(document["results"]) >= 6
    if name == "micro":
        (pread,) = (r for r in document["results"] if r["floor"] == "pread")
        assert 0.05 < pread["floor_us"]["median"] < 50, "of a token, not of a step"
    for peer in document["ratios"]:
        assert peer in out
    assert "<svg" in Path(files[1]).read_text()


def test_a_step_of_micro_takes_every_token_the_short_way(short_dir: Path) -> None:
    parts = token_path.Parts(short_dir)
    try:
        for _ in range(2):
            parts.write()
            before = parts.sender.frames
            parts.find()
            parts.take()
            assert parts.sender.frames - before == token_path.STREAMS
            parts.settle()
    finally:
        parts.close()


@pytest.mark.parametrize("name", sorted(BENCHMARKS.keys() - SMALLEST.keys()))
def test_help_says_what_is_measured(name: str) -> None:
    with benchmarks(name, "--help") as child:
        out, said = child.communicate(timeout=30)
        assert child.returncode == 0, said
        assert "--quick" in out
        assert len(out.split("Options:")[0]) > 300, "the module's docstring"
