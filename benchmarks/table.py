"""A result as a table: coloured on a terminal, plain text in a pipe.

A terminal that is too narrow gets several tables under each other, each with as many columns as
fit beside those that name the row; no cell is cut or broken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.spread import short, text

Row = dict[str, Any]
PIPE_WIDTH = 200
GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """show: a row's cell; the text of row[key] if it is absent. Numbers stand to the right.

    names: it says which row it is, as those before the first number do without this.
    """

    title: str
    key: str = ""
    show: Callable[[Row], str] | None = None
    number: bool = True
    names: bool = False

    def cell(self, row: Row) -> str:
        if self.show is not None:
            return self.show(row)
        value = row.get(self.key)
        if value is None:
            return "–"
        return text(value) if isinstance(value, dict) else str(value)


def median(row: Row, key: str) -> str:
    """Return a cell with the median alone; empty without that figure."""
    return short(row[key]["median"]) if key in row else ""


def ratio(row: Row, key: str) -> str:
    """Return a cell that says 1/5.2 or 1.3×; empty without that ratio."""
    found = row.get(key)
    if found is None:
        return ""
    middle = found["median"]
    return f"1/{1 / middle:.1f}" if middle < 1 else f"{short(middle)}×"


def console() -> Console:
    """Return stdout's console; in a pipe it is wide enough to break no row."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=PIPE_WIDTH)


def show(document: dict[str, Any], columns: list[Column], out: Console) -> None:
    """Print a result: load, rows, ratios, notes."""
    rows = document["results"]
    cells = {column: [column.cell(row) for row in rows] for column in columns}
    out.print(f"[bold]{escape(document['name'])}[/bold]  {escape(_load(document['load']))}")
    out.print(f"[dim]{escape(_machine(document['machine']))}[/dim]")
    for block in blocks(columns, cells, out.width, wrap=out.is_terminal):
        table = Table(
            box=box.SIMPLE_HEAD if out.is_terminal else None,
            # Where there is a box, its edges take one more place.
            padding=(0, GAP - out.is_terminal, 0, 0),
            pad_edge=False,
            show_edge=False,
        )
        for column in block:
            width = _width(column, cells[column], wrap=out.is_terminal)
            justify: Literal["right", "left"] = "right" if column.number else "left"
            table.add_column(column.title, justify=justify, width=width)
        for number, row in enumerate(rows):
            style = "bold" if row.get("ours") else None
            table.add_row(*(escape(cells[column][number]) for column in block), style=style)
        out.print(table, crop=False, no_wrap=True)
        if out.is_terminal:
            out.print()
    for peer, ratio in document["ratios"].items():
        out.print(escape(ratio_sentence(peer, ratio)), soft_wrap=True)
    for note in document.get("notes", []):
        out.print(f"[dim]note:[/dim] {escape(note)}", soft_wrap=True)
    if command := document.get("command"):
        out.print(f"[dim]measured by[/dim] {escape(command)}", soft_wrap=True)


def blocks(
    columns: list[Column], cells: dict[Column, list[str]], width: int, *, wrap: bool
) -> list[list[Column]]:
    """Return the columns of each table that fits into `width`, first those that name the row.

    wrap: titles may be broken between words, so that a narrow column stays narrow.
    """
    names = list(takewhile(lambda each: each.names or not each.number, columns))
    taken = sum(_width(each, cells[each], wrap=wrap) + GAP for each in names)
    found: list[list[Column]] = [[]]
    left = width - taken
    for column in columns[len(names) :]:
        needed = _width(column, cells[column], wrap=wrap) + GAP
        if needed > left and found[-1]:
            found.append([])
            left = width - taken
        found[-1].append(column)
        left -= needed
    return [[*names, *each] for each in found]


def _width(column: Column, cells: list[str], *, wrap: bool) -> int:
    title = max(map(cell_len, column.title.split()), default=0) if wrap else cell_len(column.title)
    return max([title, *map(cell_len, cells)])


def ratio_sentence(peer: str, ratio: float) -> str:
    """Say who wins, and by how much, whoever it is."""
    if ratio < 1:
        return f"{peer}: product is at 1/{1 / ratio:.1f} ({ratio:.3f})"
    return f"{peer}: product is at {ratio:.2f} times"


def _load(load: Row) -> str:
    return ", ".join(f"{key} {value}" for key, value in load.items() if not isinstance(value, dict))


def _machine(found: Row) -> str:
    kind = "virtual" if found.get("virtual") else "bare"
    return (
        f"{found.get('cpu')}, {found.get('cores')} cores ({kind}), Linux {found.get('kernel')},"
        f" {found.get('python')}, commit {found.get('commit')},"
        f" load average before {found.get('load_average_before', 0):.1f}"
    )
