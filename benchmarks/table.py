"""A result as a table: coloured on a terminal, plain text in a pipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.spread import short, text

Row = dict[str, Any]
PIPE_WIDTH = 200


@dataclass(frozen=True, slots=True)
class Column:
    """show: a row's cell; the text of row[key] if it is absent. Numbers stand to the right."""

    title: str
    key: str = ""
    show: Callable[[Row], str] | None = None
    number: bool = True

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
    out.print(f"[bold]{escape(document['name'])}[/bold]  {escape(_load(document['load']))}")
    out.print(f"[dim]{escape(_machine(document['machine']))}[/dim]")
    pretty = out.is_terminal
    table = Table(box=box.SIMPLE_HEAD if pretty else None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in columns:
        table.add_column(column.title, justify="right" if column.number else "left")
    for row in document["results"]:
        style = "bold" if row.get("ours") else None
        table.add_row(*(escape(column.cell(row)) for column in columns), style=style)
    out.print(table)
    for peer, ratio in document["ratios"].items():
        out.print(escape(ratio_sentence(peer, ratio)))
    for note in document.get("notes", []):
        out.print(f"[dim]note:[/dim] {escape(note)}", soft_wrap=True)


def ratio_sentence(peer: str, ratio: float) -> str:
    """Say who wins, and by how much, whoever it is."""
    if ratio < 1:
        return f"{peer}: product costs 1/{1 / ratio:.1f} ({ratio:.3f})"
    return f"{peer}: product costs {ratio:.2f} times as much; the peer is cheaper"


def _load(load: Row) -> str:
    return ", ".join(f"{key} {value}" for key, value in load.items() if not isinstance(value, dict))


def _machine(found: Row) -> str:
    kind = "virtual" if found.get("virtual") else "bare"
    return (
        f"{found.get('cpu')}, {found.get('cores')} cores ({kind}), Linux {found.get('kernel')},"
        f" {found.get('python')}, commit {found.get('commit')},"
        f" load average before {found.get('load_average_before')}"
    )
