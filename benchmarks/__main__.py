"""`python -m benchmarks`."""

import sys

from benchmarks.needs import told

try:
    from benchmarks.cli import main
except ModuleNotFoundError as exc:
    sys.exit(told(exc))

main()
