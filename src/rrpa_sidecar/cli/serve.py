"""`rrpa serve`: flags and environment → one daemon."""

from __future__ import annotations

import os
import sys
import time

import click

from rrpa_sidecar import logs
from rrpa_sidecar.cli.settings import SettingsCommand, load_config, settings_options

EXIT_STARTUP = 1


@click.command(
    cls=SettingsCommand,
    epilog="Sizes are bytes or 64KiB, 16MiB, 2GiB; times are seconds. A flag beats its "
    "environment variable. Exit codes: 0 stopped by SIGTERM or SIGINT, 1 could not start, "
    "2 wrong settings.",
)
@settings_options
def command(**flags: str | None) -> None:
    """Run the sidecar until SIGTERM.

    Clients call it with gRPC on --listen, engines attach on --engine-socket, Envoy calls on
    --envoy-socket, Prometheus scrapes --metrics-listen. One line on stdout says when all of
    them listen; logs go to stderr.
    """
    started_s = time.monotonic() - _process_age_s()
    config = load_config(flags)
    logs.configure(config.log_level)
    # gRPC's C core writes lines of its own to stderr; ours say what there is to say.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")

    from rrpa_sidecar.errors import StartupError
    from rrpa_sidecar.sidecar.daemon import run  # imports gRPC: only after the settings are good

    try:
        run(config, started_s)
    except StartupError as error:
        click.echo(f"rrpa: {error}", err=True)
        sys.exit(EXIT_STARTUP)


def _process_age_s() -> float:
    """Return how long this process has existed, interpreter start included; 0 if unknown."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as stat:
            started_ticks = int(stat.read().rpartition(")")[2].split()[19])
        with open("/proc/uptime", encoding="ascii") as uptime:
            return float(uptime.read().split()[0]) - started_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
