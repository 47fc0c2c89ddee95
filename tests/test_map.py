"""The table of field bugs in tests/README.md is complete and names tests that exist."""

from __future__ import annotations

import ast
import pathlib
import re

TESTS = pathlib.Path(__file__).parent
ROW = re.compile(r"^\| G(\d+) .*$", re.M)
NAME = re.compile(r"`([\w/]+\.py)::(\w+)`")
# What this version promises; the others belong to later ones.
PROMISED = {*range(1, 15), 35, 36, 37, 38, 40, 41, 42, 43, 45, 46, 47, 52, 53, 54, 57, 58}


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
