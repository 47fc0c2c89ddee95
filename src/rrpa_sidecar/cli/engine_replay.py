"""`rrpa engine replay`: a text, again and again, at a chosen pace."""

from __future__ import annotations

from pathlib import Path

import click

from rrpa_sidecar.cli.engine_options import attach_options, set_up_logs


@click.command(name="replay")
@attach_options(models="test", capacity=128)
@click.option(
    "--text-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What to say, any bytes; without it, a short text with characters of 1 to 4 bytes.",
)
@click.option(
    "--tokens-per-second",
    type=click.FloatRange(min=0),
    default=100.0,
    show_default=True,
    help="Pace of each stream; 0 is as fast as possible.",
)
@click.option(
    "--bytes-per-token",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Where the text is cut, in the middle of characters too.",
)
@click.option(
    "--prompt-delay",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Seconds before the first token.",
)
@click.option(
    "--shared-steps/--own-steps",
    default=True,
    show_default=True,
    help="All streams get their token in the same step with one bell, or each by itself.",
)
@click.option(
    "--stamp/--no-stamp",
    "stamps",
    default=False,
    help="Begin each token with its commit time: 19 digits of CLOCK_MONOTONIC ns and a space.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=0),
    help="For requests that give none; without it, such a request gets the text once.",
)
def command(
    engine_socket: str,
    shm_dir: str,
    models: tuple[str, ...],
    name: str | None,
    capacity: int,
    text_file: Path | None,
    tokens_per_second: float,
    bytes_per_token: int,
    prompt_delay: float,
    shared_steps: bool,
    stamps: bool,
    max_tokens: int | None,
) -> None:
    """Answer with a text, again and again, at a chosen pace; a source for tests and loads.

    A prompt that begins with "echo:" is answered with the rest of it. One that begins with
    "replay:" is followed by JSON that says exactly what to answer, byte by byte; for its keys:
    python -m pydoc rrpa_sidecar.engine.replay.script
    """
    set_up_logs()
    from rrpa_sidecar.clock import SystemClock
    from rrpa_sidecar.engine import attach
    from rrpa_sidecar.engine.host import run_process
    from rrpa_sidecar.engine.replay.engine import Replay, Settings
    from rrpa_sidecar.engine.replay.scheduler import Scheduler
    from rrpa_sidecar.engine.replay.source import DEFAULT_TEXT

    clock = SystemClock()
    period_ns = round(1e9 / tokens_per_second) if tokens_per_second else 0
    settings = Settings(
        text=DEFAULT_TEXT.encode() if text_file is None else text_file.read_bytes(),
        bytes_per_token=bytes_per_token,
        period_ns=period_ns,
        prompt_delay_ns=round(prompt_delay * 1e9),
        max_tokens=max_tokens,
        stamps=stamps,
    )
    scheduler = Scheduler(
        Replay(settings, clock).begin, period_ns=period_ns, shared_steps=shared_steps, clock=clock
    )
    run_process(
        lambda: (
            attach(
                engine_socket,
                models=models,
                capacity=capacity,
                name=name,
                build="replay",
                shm_dir=shm_dir,
            ),
            scheduler.run,
        )
    )
