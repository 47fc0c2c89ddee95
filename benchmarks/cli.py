"""The command line: `python -m benchmarks list|all|show|NAME`."""

from __future__ import annotations

import inspect
import json
import signal
import sys
import tempfile
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import click

from benchmarks import table
from benchmarks.plan import BenchmarkFailed, Plan
from benchmarks.processes import private_prefix
from benchmarks.registry import BENCHMARKS, Benchmark
from benchmarks.result import load, save

FAILED = 1
EPILOG = "Exit codes: 0 measured, 1 a run failed, 2 wrong usage, 130 interrupted."
DEFAULT_DIRECTORY = Path("bench-results")


class Commands(click.Group):
    """list, all, show, and one command for each benchmark, made when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *BENCHMARKS]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return super().get_command(ctx, name) or (
            _command(BENCHMARKS[name]) if name in BENCHMARKS else None
        )


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EPILOG)
def cli() -> None:
    """Measure what the product costs, beside others, on this machine.

    Tables go to stdout, progress to stderr. benchmarks/README.md says how it is measured and
    how to read it.
    """


@cli.command(name="list")
def list_() -> None:
    """Name all benchmarks, and how long each takes."""
    width = max(map(len, BENCHMARKS))
    for each in BENCHMARKS.values():
        click.echo(f"{each.name:{width}}  {each.summary} ({each.lasts})")


@cli.command(name="all")
@click.option("--quick", is_flag=True, help="Under a minute each, for a look; no basis for claims.")
@click.option(
    "--to",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_DIRECTORY,
    show_default=True,
    help="Where NAME.json and NAME.svg go.",
)
def all_(quick: bool, directory: Path) -> None:
    """Run every benchmark; one that fails does not stop the others."""
    failed = []
    for each in BENCHMARKS.values():
        files = (directory / f"{each.name}.json", directory / f"{each.name}.svg")
        try:
            _measure(each, quick=quick, runs=None, extra={}, json_to=files[0], picture_to=files[1])
        except BenchmarkFailed as exc:
            _say(f"{each.name} failed: {exc}")
            failed.append(each.name)
        except Exception:  # noqa: BLE001 - a fault in one must not cost an hour of the others
            traceback.print_exc()
            failed.append(each.name)
    _say(f"results are in {directory}")
    if failed:
        _end(FAILED, f"failed: {', '.join(failed)}")


@cli.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw it, as SVG.")
def show(file: Path, picture: Path | None) -> None:
    """Print, and perhaps draw, a result that was saved with --json."""
    try:
        document = load(file)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    if document["name"] not in BENCHMARKS:
        raise click.UsageError(f"{file} is a result of {document['name']!r}, which is unknown here")
    module = BENCHMARKS[document["name"]].load()
    table.show(document, module.COLUMNS, table.console())
    if picture:
        module.draw(document, picture)


def _command(benchmark: Benchmark) -> click.Command:
    """Return the command that runs `benchmark`, with the options of its module."""
    module = benchmark.load()
    own: list[click.Parameter] = list(getattr(module, "OPTIONS", []))

    def callback(
        quick: bool, runs: int | None, json_to: Path | None, picture_to: Path | None, **extra: Any
    ) -> None:
        try:
            _measure(
                benchmark,
                quick=quick,
                runs=runs,
                extra=extra,
                json_to=json_to,
                picture_to=picture_to,
            )
        except BenchmarkFailed as exc:
            _end(FAILED, f"{benchmark.name} failed: {exc}")

    path = click.Path(dir_okay=False, path_type=Path)
    options: list[click.Parameter] = [
        click.Option(["--quick"], is_flag=True, help="A short look; no basis for claims."),
        click.Option(
            ["--runs"],
            type=click.IntRange(min=1),
            help=f"Rounds.  [default: {module.RUNS}, with --quick {module.QUICK_RUNS}]",
        ),
        click.Option(["--json", "json_to"], type=path, help="Save the result."),
        click.Option(["--picture", "picture_to"], type=path, help="Draw the result, as SVG."),
    ]
    return click.Command(
        benchmark.name,
        callback=callback,
        params=options + own,
        help=inspect.getdoc(module),
        short_help=benchmark.summary,
        epilog=f"Takes {benchmark.lasts}. {EPILOG}",
    )


def _measure(
    benchmark: Benchmark,
    *,
    quick: bool,
    runs: int | None,
    extra: dict[str, Any],
    json_to: Path | None,
    picture_to: Path | None,
) -> None:
    """Run, print, save, draw. Raises BenchmarkFailed."""
    module = benchmark.load()
    rounds = runs or (module.QUICK_RUNS if quick else module.RUNS)
    with ExitStack() as stack:
        # Sockets lie in it, and their paths end at 107 bytes.
        private = tempfile.TemporaryDirectory(prefix=private_prefix(), dir="/tmp")
        workdir = stack.enter_context(private)
        result = module.run(Plan(quick, rounds, Path(workdir), stack, _say, extra))
    document = json.loads(json.dumps(result.document()))
    table.show(document, module.COLUMNS, table.console())
    if json_to:
        save(document, json_to)
    if picture_to:
        module.draw(document, picture_to)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _end(code: int, line: str) -> NoReturn:
    _say(line)
    sys.exit(code)


def _interrupt(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def main() -> None:
    """Run the command line. SIGTERM and SIGHUP end everything as Ctrl-C does."""
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, _interrupt)
    try:
        cli(standalone_mode=False)
    except click.ClickException as exc:
        exc.show()
        sys.exit(exc.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _end(130, "interrupted; everything that was started has been ended")
    except Exception:  # noqa: BLE001 - a fault of the harness itself: show all of it
        traceback.print_exc()
        sys.exit(FAILED)
