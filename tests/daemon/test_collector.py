"""The garbage collector's settings, as a sidecar has them once it serves."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import gc
from rrpa_sidecar.sidecar import daemon
daemon._rest_collector()
print(gc.get_freeze_count() > 20_000, gc.get_threshold() == daemon.COLLECTOR_THRESHOLDS)
"""


def test_what_lives_as_long_as_the_sidecar_is_never_looked_at_again() -> None:
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "True"]
