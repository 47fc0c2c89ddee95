"""The command `rrpa` and its sub-commands.

A sub-command is a module with a click command named `command`, loaded when it is asked for:
`rrpa serve` imports nothing that only `rrpa demo` needs.
"""

from __future__ import annotations

import importlib

import click

import rrpa_sidecar
from rrpa_sidecar.cli.usage import show_error

EXIT_INTERRUPTED = 130
"""128 and SIGINT, as shells count."""

COMMANDS = {
    "serve": ("rrpa_sidecar.cli.serve", "Run the sidecar."),
    "engine": ("rrpa_sidecar.cli.engine", "Run one of the engines that come along."),
    "envoy-config": ("rrpa_sidecar.cli.envoy_config", "Write the Envoy config of these settings."),
    "demo": ("rrpa_sidecar.cli.demo", "Show a real model's answer through every component."),
}


class LazyGroup(click.Group):
    """A group that knows its commands' names and one-line helps without importing them."""

    def __init__(self, *args: object, lazy: dict[str, tuple[str, str]], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        command = importlib.import_module(self._lazy[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._lazy.items()])


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(rrpa_sidecar.__version__, prog_name="rrpa")
def cli() -> None:
    """Stream a language-model engine's token bytes from shared memory to gRPC clients."""


def run() -> int:
    """Run the command line; return the exit code."""
    try:
        status: int = cli.main(prog_name="rrpa", standalone_mode=False)
    except click.ClickException as error:
        show_error(error, "rrpa")
        status = error.exit_code
    except click.Abort:
        status = EXIT_INTERRUPTED
    return status
