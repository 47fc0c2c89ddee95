"""Figures, their JSON, their table and their picture: what is pure."""

from __future__ import annotations

import copy
import io
import json
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks import latency, paced, table
from benchmarks.machine import machine
from benchmarks.picture import apart
from benchmarks.registry import BENCHMARKS
from benchmarks.result import Result, faults, load, save
from benchmarks.spread import ratios, short, spread, text
from benchmarks.table import ratio_sentence

MEASURED = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=9)


@given(MEASURED)
def test_a_median_lies_between_the_least_and_the_largest_run(values: list[float]) -> None:
    found = spread(values)
    assert found["min"] <= found["median"] <= found["max"]
    assert len(found["runs"]) == len(values)
    assert not faults(document(server_us=found))


def test_ratios_are_taken_round_by_round() -> None:
    # The machine was twice as slow in the second round, for both.
    assert ratios([2, 4, 2], [8, 16, 8]) == {
        "median": 0.25,
        "min": 0.25,
        "max": 0.25,
        "runs": [0.25, 0.25, 0.25],
    }
    with pytest.raises(ValueError, match="argument"):
        ratios([1, 2], [1])
    with pytest.raises(ValueError, match="no value"):
        spread([])


def test_a_figure_shows_three_digits_and_its_runs() -> None:
    assert text(spread([2.4123, 2.4, 2.6789]), "µs") == "2.41 µs (2.4–2.68)"
    assert text(spread([427.2])) == "427"
    assert [short(value) for value in (0, 0.01234, 12.34, 1234.5)] == [
        "0",
        "0.0123",
        "12.3",
        "1230",
    ]


def test_the_sentence_about_a_peer_says_who_is_better() -> None:
    assert ratio_sentence("peer", 0.125) == "peer: product is at 1/8.0 (0.125)"
    assert ratio_sentence("peer", 1.5) == "peer: product is at 1.50 times"


def document(**row: Any) -> dict[str, Any]:
    return {
        "name": "paced",
        "machine": {},
        "load": {},
        "results": [{"server": "peer", **row}],
        "ratios": {"peer": 0.5},
        "notes": [],
    }


def test_a_result_survives_its_file(tmp_path: Path) -> None:
    file = tmp_path / "new" / "result.json"
    save(document(server_us=spread([1, 2])), file)
    assert load(file) == document(server_us=spread([1, 2]))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ratios": {"peer": 0}}, "above 0"),
        ({"ratios": {"peer": "0.5"}}, "above 0"),
        ({"results": []}, "at least one row"),
        ({"results": [{"us": {"median": 3, "min": 1, "max": 2, "runs": [1, 2]}}]}, "between"),
        ({"results": [{"us": {"median": 1, "runs": [1]}}]}, "expected ['max'"),
        ({"machine": None}, "machine: expected dict"),
    ],
)
def test_a_result_with_a_fault_is_neither_written_nor_read(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    wrong = {**document(), **change}
    assert said in "; ".join(faults(wrong))
    with pytest.raises(ValueError, match="result of"):
        Result(**wrong).document()
    save(wrong, tmp_path / "wrong.json")
    with pytest.raises(ValueError, match="no result"):
        load(tmp_path / "wrong.json")


def test_the_machine_says_what_others_need_to_repeat_a_figure() -> None:
    found = machine()
    assert found["cpu"]
    assert found["cores"] >= 1
    assert found["versions"]["grpcio"][0].isdigit()
    json.dumps(found)


def paced_document() -> dict[str, Any]:
    """Two servers; the second is behind, and carries half."""
    figures = {
        key: spread([2.0, 2.5])
        for key in ("server_us", "envoy_us", "all_us", "pace", "server_cores", "server_rss_mib")
    }
    row = {
        **figures,
        "elsewhere_cores": spread([0.0, 0.1]),
        "server": "rrpa batched",
        "ours": True,
        "load": "512×100",
        "load_asked": "512×100",
        "streams": 512,
        "tokens_per_s": 100.0,
        "carried": True,
    }
    half = {"load": "256×100", "streams": 256}
    peer = {"server": "[peer]", "ours": False, "ratio": spread([0.5]), "carried": False}
    rows = [row, {**row, **peer}, {**row, **half}, {**row, **peer, **half, "carried": True}]
    found = document()
    return {**found, "machine": machine(), "results": [copy.deepcopy(each) for each in rows]}


def test_a_table_in_a_pipe_is_plain_and_breaks_no_row(capsys: pytest.CaptureFixture[str]) -> None:
    out = table.console()
    assert not out.is_terminal
    table.show(paced_document(), paced.COLUMNS, out)
    lines = capsys.readouterr().out.splitlines()
    assert all(line.isprintable() for line in lines)
    # A name in brackets is a name, and no markup of rich's.
    (row,) = [line for line in lines if "[peer]" in line and "512×100" in line]
    assert "1/2.0" in row
    assert "2.25 (2–2.5)" in row


def test_a_table_on_a_terminal_has_colours() -> None:
    out = Console(force_terminal=True, width=200, color_system="standard")
    with out.capture() as captured:
        table.show(paced_document(), paced.COLUMNS, out)
    assert "\x1b[" in captured.get()


def test_the_picture_labels_each_server_and_paints_no_background(tmp_path: Path) -> None:
    file = tmp_path / "paced.svg"
    paced.draw(paced_document(), file)
    root = ElementTree.parse(file).getroot()
    texts = {text for element in root.iter() if (text := (element.text or "").strip())}
    assert {"rrpa batched", "[peer], behind", "[peer], 256×100", "2.25 (2–2.5)"} <= texts
    assert "fill: #ffffff" not in file.read_text()
    first = file.read_bytes()
    paced.draw(paced_document(), file)
    assert file.read_bytes() == first, "the same figures gave another file"


WIDE = [
    table.Column("server", "server", number=False),
    *(table.Column(f"figure number {number}, µs/token", f"a{number}_us") for number in range(9)),
]


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_a_table_breaks_no_cell_and_passes_no_edge_however_narrow(width: int) -> None:
    figures = {f"a{number}_us": spread([number + 1.25, number + 2.5]) for number in range(9)}
    out = Console(width=width, record=True, force_terminal=True, file=io.StringIO())
    table.show(document(**figures) | {"ratios": {}}, WIDE, out)
    lines = out.export_text().splitlines()
    for number in range(9):
        shown = text(figures[f"a{number}_us"])
        assert sum(shown in line for line in lines) == 1
    rows = [line for line in lines if line.startswith("peer")]
    assert max(map(len, rows)) <= width
    assert "…" not in out.export_text()


def test_a_table_in_a_pipe_has_one_line_for_each_row() -> None:
    figures = {f"a{number}_us": spread([number + 1.25, number + 2.5]) for number in range(9)}
    out = Console(width=table.PIPE_WIDTH, record=True, file=io.StringIO())
    table.show(document(**figures) | {"ratios": {}}, WIDE[:7], out)
    assert sum(line.startswith("peer") for line in out.export_text().splitlines()) == 1


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_has_columns_that_name_the_row_when_its_table_is_broken(name: str) -> None:
    columns = BENCHMARKS[name].load().COLUMNS
    cells = {column: ["123.4 (123.4–123.4)"] for column in columns}
    first, *others = table.blocks(columns, cells, 60, wrap=True)
    assert others
    assert all(each[0] is first[0] for each in others)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=6))
def test_labels_at_the_ends_of_lines_do_not_touch_and_keep_their_order(places: list[float]) -> None:
    moved = apart(places, 12)
    assert all(after >= before for before, after in zip(places, moved, strict=True))
    order = sorted(range(len(places)), key=places.__getitem__)
    gaps = [moved[upper] - moved[lower] for lower, upper in pairwise(order)]
    assert all(gap >= 12 - 1e-9 for gap in gaps)


def test_the_picture_says_at_how_many_streams_a_latency_was_measured(tmp_path: Path) -> None:
    measured = {"load": "512x100", "way": "direct", "steps": "shared", "ours": True}
    measured |= {"p50_us": spread([1.0]), "p99_us": spread([2.0])}
    rows = [{**measured, "server": "rrpa", "streams": streams} for streams in (128, 512)]
    latency.draw({"results": rows}, tmp_path / "l.svg")
    drawn = (tmp_path / "l.svg").read_text()
    assert "rrpa (at 128 streams), p50" in drawn
    assert "rrpa, p50" in drawn
    assert "(at 512 streams)" not in drawn
