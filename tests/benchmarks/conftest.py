"""What the benchmarks' tests need that may not be installed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.load.client import build


@pytest.fixture(scope="session")
def program() -> Path:
    """The client. What is not installed skips; a fault in its source fails."""
    try:
        found = subprocess.run(
            [os.environ.get("CC", "cc"), "-E", "-"],
            input="#include <nghttp2/nghttp2.h>\n",
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("there is no C compiler: install gcc and libc6-dev")
    if found.returncode:
        pytest.skip("there is no nghttp2/nghttp2.h: install libnghttp2-dev")
    return build()
