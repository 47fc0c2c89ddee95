"""What is said of a wrong command line: one line, as for wrong settings."""

from __future__ import annotations

import click


def show_error(error: click.ClickException, program: str) -> None:
    """Print click's error as "program: what is wrong; see COMMAND --help" on stderr.

    A group that was given no command says its help, as click does.
    """
    context = getattr(error, "ctx", None)
    if _is_help(error):
        error.show()
        return
    text = error.format_message().strip().rstrip(".")
    see = f"; see {context.command_path} --help" if context is not None else ""
    click.echo(f"{program}: {text}{see}", err=True)


def _is_help(error: click.ClickException) -> bool:
    """Return whether it is no error but the help page, which click 8.2 and later raise."""
    return type(error).__name__ == "NoArgsIsHelpError"
