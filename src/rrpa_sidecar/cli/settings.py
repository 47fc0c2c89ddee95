"""Command-line options and help pages made from `rrpa_sidecar.config`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from rrpa_sidecar.config import Config, ConfigErrors, Setting, settings

EXIT_CONFIG = 2
"""Exit code when a flag or an environment variable is wrong, as click uses for unknown flags."""

F = TypeVar("F", bound=Callable[..., Any])


class SettingOption(click.Option):
    """One setting as an option: taken as text, judged later together with all others."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        super().__init__(
            [setting.flag, setting.name], metavar=setting.kind.metavar, help=setting.help
        )

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """Return flag and unit, then the text, the default and the environment's name."""
        shown = self.setting.kind.show(self.setting.default)
        default = f"default: {shown}; " if shown else ""
        return (
            f"{self.setting.flag} {self.setting.kind.metavar}",
            f"{self.setting.help}  [{default}env: {self.setting.env}]",
        )


class SettingsCommand(click.Command):
    """A command whose help shows settings under their groups' headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            heading = param.setting.group if isinstance(param, SettingOption) else "Options"
            record = param.get_help_record(ctx)
            if record:
                groups.setdefault(heading, []).append(record)
        for heading in sorted(groups, key=lambda name: name == "Options"):
            with formatter.section(heading):
                formatter.write_dl(groups[heading])


def settings_options(function: F) -> F:
    """Decorate a command with every setting; it gets them as texts by name, None if absent."""
    options = [SettingOption(each) for each in settings()]
    function.__dict__.setdefault("__click_params__", []).extend(reversed(options))
    return function


def load_config(flags: dict[str, str | None]) -> Config:
    """Return the settings from `flags` and the environment, or exit with all their faults."""
    try:
        return Config.load(flags, os.environ)
    except ConfigErrors as error:
        for line in error.lines:
            click.echo(f"rrpa: {line}", err=True)
        raise SystemExit(EXIT_CONFIG) from None
