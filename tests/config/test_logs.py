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


def test_grpc_says_nothing_of_what_any_caller_can_cause_and_all_else() -> None:
    code = (
        "import logging\n"
        "from rrpa_sidecar import logs\n"
        "logs.configure('info')\n"
        "grpc, ours = logging.getLogger('grpc._cython.cygrpc'), logging.getLogger('rrpa_sidecar')\n"
        "left = '%s raised in core by servicer method [%s]'\n"
        "for log in (grpc, ours): log.error(left, 'ExecuteBatchError', '/a')\n"
        "for log in (grpc, ours): log.error(left % ('ExecuteBatchError', '/b'))\n"
        "grpc.error('Invalid encoding in a header'); grpc.error('a fault')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    said = [line.split(" ", 2)[2] for line in done.stderr.splitlines()]
    assert said == [
        "rrpa_sidecar: ExecuteBatchError raised in core by servicer method [/a]",
        "rrpa_sidecar: ExecuteBatchError raised in core by servicer method [/b]",
        "grpc._cython.cygrpc: a fault",
    ]
