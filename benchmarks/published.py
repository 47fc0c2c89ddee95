"""Keeps the figures of the project's README equal to results/*.json, which benchmarks have written.

python -m benchmarks.published            exits 1 if the page is out of date
python -m benchmarks.published --write    rewrites its tables and pictures
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.spread import text

RESULTS = Path(__file__).with_name("results")
PAGE = Path(__file__).parent.parent / "README.md"

Document = dict[str, Any]


def tables(results: Path = RESULTS) -> dict[str, str]:
    """Return the generated parts of the page by the name of their markers."""
    paced = [json.loads(file.read_text()) for file in sorted(results.glob("paced*.json"))]
    return {"paced": _paced(paced), "paced-how": "\n".join(map(_how, paced))}


def render(page: str, results: Path = RESULTS) -> str:
    """Return `page` with the text between each pair of markers made anew."""
    for name, table in tables(results).items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
        head, _, rest = page.partition(begin)
        _, _, tail = rest.partition(end)
        if not tail:
            raise SystemExit(f"{PAGE.name} lacks the markers of {name!r}")
        page = f"{head}{begin}{table}{end}{tail}"
    return page


def main(argv: list[str]) -> int:
    old = PAGE.read_text()
    new = render(old)
    if "--write" in argv:
        from benchmarks import paced

        PAGE.write_text(new)
        document = json.loads((RESULTS / "paced.json").read_text())
        paced.draw(document, RESULTS / "paced.svg")
    elif new != old:
        print("README.md is out of date: python -m benchmarks.published --write", file=sys.stderr)
        return 1
    return 0


def _paced(documents: list[Document]) -> str:
    """One row for each peer and load, the product's own of the same run beside it."""
    head = ("beside", "streams × tokens/s", "sidecar ÷ peer", "peer, µs/token", "sidecar, µs/token",
            "all processes ÷ all of peer's")  # fmt: skip
    rows = [cells for document in documents for cells in _rows(document)]
    return "".join(_row(row) for row in (head, ["---"] * len(head), *rows))


def _rows(document: Document) -> list[tuple[str, ...]]:
    ours = {row["load"]: row for row in document["results"] if row["ours"]}
    return [
        (
            row["server"],
            row["load"] if row["carried"] else f"{row['load']}, behind",
            _ratio(row["ratio"]),
            text(row["server_us"]),
            text(ours[row["load"]]["server_us"]),
            _ratio(row["all_ratio"]),
        )
        for row in document["results"]
        if not row["ours"] and "ratio" in row
    ]


def _ratio(spread: Document) -> str:
    middle = spread["median"]
    return f"**1/{1 / middle:.1f}**" if middle < 1 else f"{middle:.1f}× (the peer is cheaper)"


def _how(document: Document) -> str:
    machine, load = document["machine"], document["load"]
    said = list(document["notes"])
    if load.get("quick"):
        said.append("this was a short look (`--quick`), no basis for claims")
    if command := document.get("command"):
        said.append(f"`{command}` prints that")
    notes = f" Notes: {'; '.join(said)}." if said else ""
    return (
        f"Medians (least–most) of {load['rounds']} rounds of {load['window_s']:g} s in which the"
        f" servers took turns; {load['token']} a token; {machine['cpu']}, {machine['cores']}"
        f" {'virtual ' if machine['virtual'] else ''}cores, Linux {machine['kernel']},"
        f" {machine['python']}, commit {machine['commit']}.{notes}\n"
    )


def _row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |\n"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
