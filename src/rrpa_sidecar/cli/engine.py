"""`rrpa engine`: the engines that come along."""

from __future__ import annotations

import click

from rrpa_sidecar.cli.group import LazyGroup

ENGINES = {
    "llamacpp": ("rrpa_sidecar.cli.engine_llamacpp", "A GGUF model on llama.cpp."),
    "replay": ("rrpa_sidecar.cli.engine_replay", "A text, again and again, at a chosen pace."),
}


@click.group(cls=LazyGroup, lazy=ENGINES)
def command() -> None:
    """Run one of the engines that come along; it attaches to the sidecar of this node."""
