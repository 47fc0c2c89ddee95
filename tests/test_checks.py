"""Formatter, linter and type checker, as tests: one closing line speaks for everything."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent

CHECKS = {
    "ruff check": ["ruff", "check", "--quiet", "."],
    "ruff format": ["ruff", "format", "--check", "--quiet", "."],
    "mypy strict": ["mypy", "--no-error-summary"],
}


@pytest.mark.parametrize("check", CHECKS)
def test_source_is_clean_under(check: str) -> None:
    found = subprocess.run(
        [sys.executable, "-m", *CHECKS[check]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, f"{check}:\n{found.stdout}{found.stderr}"
