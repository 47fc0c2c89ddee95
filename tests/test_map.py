"""The tables of faults in the READMEs are complete and name tests that exist."""

from __future__ import annotations

import ast
import pathlib
import re

TESTS = pathlib.Path(__file__).parent
ROW = re.compile(r"^\| G(\d+) .*$", re.M)
NAME = re.compile(r"`([\w/]+\.py)::(\w+)`")
# What this version promises; the others belong to later ones.
PROMISED = {*range(1, 15), 35, 36, 37, 38, 40, 41, 42, 43, 45, 46, 47, 52, 53, 54, 57, 58}


FAULTS = TESTS / "faults" / "README.md"
# What processes, files, memory and clocks may do; faults/README.md says what the user sees.
PROMISED_FAULTS = {*range(14, 20), *range(25, 35), 38, 39, 40, 51, 52, 53, 63}
DEATHS = 7
"""Ways in which streams through /dev/shm die: requirement O4."""


def rows() -> dict[int, list[tuple[str, str]]]:
    """Return, for each field bug, the (file, test) pairs that hold it."""
    text = (TESTS / "README.md").read_text()
    return {int(found[1]): NAME.findall(found[0]) for found in ROW.finditer(text)}


def names_in(path: pathlib.Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_every_promised_field_bug_has_a_row_with_a_test() -> None:
    found = rows()
    assert set(found) == PROMISED
    assert all(found.values())


def test_every_test_of_the_table_exists() -> None:
    missing = [
        f"G{number}: {file}::{name}"
        for number, named in rows().items()
        for file, name in named
        if not (TESTS / file).exists() or name not in names_in(TESTS / file)
    ]
    assert not missing, "\n".join(missing)


def fault_rows() -> list[tuple[str, list[tuple[str, str]]]]:
    """Return (found by, [(file, test), …]) of each row of faults/README.md."""
    lines = (line.split(" | ") for line in FAULTS.read_text().splitlines() if " | " in line)
    return [(cells[1], NAME.findall(cells[3])) for cells in list(lines)[2:]]


def test_every_promised_fault_has_a_row_with_a_test() -> None:
    found = fault_rows()
    numbers = {int(by[1:]) for by, _ in found if re.fullmatch(r"G\d+", by)}
    assert numbers == PROMISED_FAULTS
    assert sum(by == "O4" for by, _ in found) == DEATHS
    assert all(named for _, named in found)


def test_every_test_of_the_faults_exists() -> None:
    missing = [
        f"{by}: {file}::{name}"
        for by, named in fault_rows()
        for file, name in named
        if not (TESTS / file).exists() or name not in names_in(TESTS / file)
    ]
    assert not missing, "\n".join(missing)
