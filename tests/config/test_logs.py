"""One event is one line, and `none` is none."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rrpa_sidecar import logs


@pytest.mark.parametrize(
    "text", ["a\nb", "a\r\nb", "a\x00b", "a\u2028b", "a\x85b", "a\x1b[31mb", "a\udc80b", "a\vb\fc"]
)
def test_a_text_with_line_breaks_and_controls_is_escaped(text: str) -> None:
    line = logs.escape(text)
    assert len(line.splitlines()) == 1
    assert line.isprintable()


def test_printable_text_is_unchanged() -> None:
    assert logs.escape("plain ünïcödé 漢字 🙂") == "plain ünïcödé 漢字 🙂"


def test_a_line_is_cut_at_its_limit() -> None:
    assert logs.escape("x" * logs.LINE_LIMIT_CHARS) == "x" * logs.LINE_LIMIT_CHARS
    assert logs.escape("x" * (logs.LINE_LIMIT_CHARS + 1)) == "x" * logs.LINE_LIMIT_CHARS + "…"


def logged(level: str) -> list[str]:
    code = (
        "import logging\n"
        "from rrpa_sidecar import logs\n"
        f"logs.configure({level!r})\n"
        "log = logging.getLogger('rrpa_sidecar.x')\n"
        "log.debug('d'); log.info('i'); log.warning('w')\n"
        "try: 1 / 0\n"
        "except ZeroDivisionError: log.exception('e')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stderr.splitlines()


@pytest.mark.parametrize(
    ("level", "lines"), [("none", 0), ("error", 1), ("warning", 2), ("info", 3), ("debug", 4)]
)
def test_each_level_logs_itself_and_above_one_line_each_also_with_a_traceback(
    level: str, lines: int
) -> None:
    found = logged(level)
    assert len(found) == lines
    assert all("Z " in line and " rrpa_sidecar.x: " in line for line in found)
    assert not found or "ZeroDivisionError" in found[-1]
