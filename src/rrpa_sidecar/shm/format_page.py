"""Keeps the tables of FORMAT.md equal to layout.py.

python -m rrpa_sidecar.shm.format_page            exits 1 if the page is out of date
python -m rrpa_sidecar.shm.format_page --write    rewrites it
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from rrpa_sidecar.shm import layout

PAGE = Path(__file__).with_name("FORMAT.md")


def tables() -> dict[str, str]:
    """Return the generated parts of the page by the name of their markers."""
    return {
        "log": _fields(layout.LOG_FIELDS),
        "table": _fields(layout.TABLE_FIELDS),
        "constants": _constants(),
    }


def render(page: str) -> str:
    """Return `page` with the text between each pair of markers made anew."""
    for name, table in tables().items():
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
        PAGE.write_text(new)
    elif new != old:
        print("FORMAT.md is out of date: run with --write", file=sys.stderr)
        return 1
    return 0


def _fields(fields: Iterable[layout.Field]) -> str:
    head = ("offset", "bytes", "name", "kind", "step", "meaning")
    rows = [
        (f.offset, f.size, f"`{f.name}`", f.kind.split("[")[0], f.when, f.meaning) for f in fields
    ]
    return "".join(_row(row) for row in (head, ["---"] * len(head), *rows))


def _row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |\n"


def _constants() -> str:
    rows = (
        ("version", layout.VERSION),
        ("page", layout.PAGE_BYTES),
        ("header", layout.HEADER_BYTES),
        ("part of the header that is used", layout.HEADER_USED_BYTES),
        ("log file, default", layout.DEFAULT_STREAM_BYTES),
        ("log file, smallest", layout.MIN_STREAM_BYTES),
        ("log file, largest", layout.MAX_STREAM_BYTES),
        ("slots of a table, most", layout.MAX_SLOTS),
        ("tail of a log, in its table", layout.TAIL_BYTES),
        ("tail with its checksum", layout.TAIL_RECORD_BYTES),
        ("stop sequence, longest", layout.STOP_LIMIT_BYTES),
        ("text, longest", layout.TEXT_LIMIT_BYTES),
    )
    numbers = [(what, f"{value:,}") for what, value in rows]
    return "".join(_row(row) for row in (("what", "value"), ("---", "---"), *numbers))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
