"""The README's figures are those of the results that lie beside the benchmarks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import published
from benchmarks.spread import spread


def row(server: str, load: str, us: float, *, ours: bool = False, **more: object) -> dict:
    found = {"server": server, "load": load, "ours": ours, "carried": True, **more}
    return {**found, "server_us": spread([us]), "all_us": spread([3 * us])}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    peer = {"ratio": spread([0.2]), "all_ratio": spread([1.25])}
    document = {
        "name": "paced",
        "machine": {"cpu": "C", "cores": 2, "virtual": False, "kernel": "6", "python": "P",
                    "commit": "abc"},
        "load": {"rounds": 3, "window_s": 4.0, "token": "5 bytes"},
        "results": [
            row("us", "512×100", 2.0, ours=True),
            row("us", "64×100", 4.0, ours=True),
            row("peer", "512×100", 10.0, **peer),
            row("slow", "512×100", 9.0, **{**peer, "carried": False}),
            row("slow", "64×100", 20.0, **peer),
        ],
        "ratios": {"peer": 0.2},
        "notes": ["something was odd"],
    }  # fmt: skip
    (tmp_path / "paced.json").write_text(json.dumps(document))
    return tmp_path


def test_the_readme_says_what_the_results_say() -> None:
    page = published.PAGE.read_text()
    assert published.render(page) == page, "run: python -m benchmarks.published --write"


def test_each_peer_stands_beside_the_product_at_its_own_load(results: Path) -> None:
    lines = published.tables(results)["paced"].splitlines()
    assert [line.split(" | ")[:2] for line in lines[2:]] == [
        ["| peer", "512×100"],
        ["| slow", "512×100, behind"],
        ["| slow", "64×100"],
    ]
    assert "**1/5.0**" in lines[2]
    assert "1.2× (the peer is cheaper)" in lines[2]
    assert lines[2].split(" | ")[3:5] == ["10", "2"]
    assert lines[4].split(" | ")[3:5] == ["20", "4"]


def test_what_was_odd_about_a_run_is_said(results: Path) -> None:
    assert "Notes: something was odd" in published.tables(results)["paced-how"]


def test_a_short_look_is_called_one_and_the_command_stands_beside_its_figures(
    results: Path,
) -> None:
    how = published.tables(results)["paced-how"]
    assert "short look" not in how
    file = results / "paced.json"
    document = json.loads(file.read_text())
    document["load"]["quick"] = True
    document["command"] = "python -m benchmarks paced --quick"
    file.write_text(json.dumps(document))
    how = published.tables(results)["paced-how"]
    assert "this was a short look (`--quick`), no basis for claims" in how
    assert "`python -m benchmarks paced --quick` prints that" in how


def test_a_page_without_markers_is_an_error_that_names_them(results: Path) -> None:
    with pytest.raises(SystemExit, match="markers of 'paced'"):
        published.render("nothing", results)


def test_text_around_the_markers_stays(results: Path) -> None:
    page = "".join(
        f"a\n<!-- begin {n} -->\nold\n<!-- end {n} -->\nb\n" for n in ("paced", "paced-how")
    )
    made = published.render(page, results)
    assert "old" not in made
    assert made.startswith("a\n<!-- begin paced -->\n| beside |")
    assert made.endswith("<!-- end paced-how -->\nb\n")
