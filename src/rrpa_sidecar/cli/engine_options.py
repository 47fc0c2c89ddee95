"""The options that every engine of ours has."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from rrpa_sidecar import logs
from rrpa_sidecar.config import settings

Command = TypeVar("Command", bound=Callable[..., Any])


def attach_options(*, models: str | None, capacity: int) -> Callable[[Command], Command]:
    """Return a decorator that adds where to attach and what to serve, with these defaults.

    models: None leaves the choice to the command, which then gets an empty tuple.
    """
    options = (
        _shared("engine_socket", "The sidecar's socket for engines."),
        _shared("shm_dir", "The sidecar's shared-memory directory."),
        click.option(
            "--model",
            "models",
            multiple=True,
            default=() if models is None else (models,),
            show_default=models or "after the model's file",
            help="Name that clients ask for; may be given more than once.",
        ),
        click.option("--name", help="A label for logs and error texts; engine-<pid> without it."),
        click.option(
            "--capacity",
            type=click.IntRange(min=1),
            default=capacity,
            show_default=True,
            help="Most streams at once.",
        ),
    )

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _shared(name: str, help: str) -> Callable[[Command], Command]:
    """Return the option for a setting of the sidecar: same flag, variable and default there."""
    (setting,) = (each for each in settings() if each.name == name)
    return click.option(
        setting.flag,
        name,
        envvar=setting.env,
        default=setting.default,
        show_default=True,
        show_envvar=True,
        help=help,
    )


def set_up_logs() -> None:
    """Log as the sidecar does. Call it before the first import of grpc.

    gRPC's core tells of every lost connection on stderr, which our own log says in one line.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    logs.configure("info")
