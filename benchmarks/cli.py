"""The command line: `python -m benchmarks list|all|show|NAME`."""

from __future__ import annotations

import inspect
import json
import os
import shlex
import signal
import sys
import tempfile
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import click

from benchmarks import needs, table
from benchmarks.load.client import LoadError, build
from benchmarks.plan import BenchmarkFailed, Plan
from benchmarks.processes import private_prefix
from benchmarks.progress import Progress
from benchmarks.registry import BENCHMARKS, Benchmark
from benchmarks.result import load, save
from rrpa_sidecar.cli.usage import show_error

FAILED = 1
EPILOG = "Exit codes: 0 measured, 1 a run failed, 2 wrong usage, 130 interrupted."
DEFAULT_DIRECTORY = Path("bench-results")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
COMMAND = "python -m benchmarks"
PIPE_WIDTH = 200


class Commands(click.Group):
    """list, all, show, and one command for each benchmark, made when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *BENCHMARKS]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return super().get_command(ctx, name) or (
            _command(BENCHMARKS[name]) if name in BENCHMARKS else None
        )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Not click's, which would load every benchmark with all that it needs.
        own = [(name, each.get_short_help_str()) for name, each in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(sorted(own))
        with formatter.section("Benchmarks"):
            formatter.write_dl([(each.name, each.summary) for each in BENCHMARKS.values()])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EPILOG)
def cli() -> None:
    """Measure what the product costs, beside others, on this machine.

    Tables go to stdout, progress to stderr. benchmarks/README.md says how it is measured and
    how to read it.
    """


@cli.command(name="list")
def list_() -> None:
    """Name all benchmarks, and how long each takes."""
    formatter = click.HelpFormatter(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    formatter.write_dl(
        [(each.name, f"{each.summary} ({each.lasts})") for each in BENCHMARKS.values()]
    )
    click.echo(formatter.getvalue(), nl=False)


@cli.command(name="all", short_help="Run every benchmark.")
@click.option("--quick", is_flag=True, help="About a minute each, for a look; no basis for claims.")
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
    _expect_writable("--to", directory / "any")
    for each in (each for each in BENCHMARKS.values() if each.measures):
        files = (directory / f"{each.name}.json", directory / f"{each.name}.svg")
        _say(f"{each.name} ({each.lasts}): {each.summary}")
        try:
            _measure(each, quick=quick, runs=None, extra={}, json_to=files[0], picture_to=files[1])
        except BenchmarkFailed as exc:
            _say(f"{each.name} failed: {exc}")
            failed.append(each.name)
        except ModuleNotFoundError as exc:
            _say(f"{each.name} failed: {needs.told(exc)}")
            failed.append(each.name)
        except Exception:  # noqa: BLE001 - a fault in one must not cost an hour of the others
            traceback.print_exc()
            failed.append(each.name)
    _say(f"results are in {directory}")
    if failed:
        _end(FAILED, f"failed: {', '.join(failed)}")


@cli.command(short_help="Print a result that was saved.")
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
    _expect_writable("--picture", picture)
    module = BENCHMARKS[document["name"]].load()
    try:
        table.show(document, module.COLUMNS, table.console())
        if picture:
            module.draw(document, picture)
    except KeyError as exc:
        raise click.UsageError(
            f"{file} has no {exc}: another version wrote it; measure again with --json"
        ) from exc


def _command(benchmark: Benchmark) -> click.Command:
    """Return the command that runs `benchmark`, with the options of its module."""
    module = benchmark.load()
    own: list[click.Parameter] = list(getattr(module, "OPTIONS", []))

    def callback(
        quick: bool, runs: int | None, json_to: Path | None, picture_to: Path | None, **extra: Any
    ) -> None:
        _expect_writable("--json", json_to)
        _expect_writable("--picture", picture_to)
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
    if benchmark.needs_client:
        # Before servers are started for nothing.
        try:
            build()
        except LoadError as exc:
            raise BenchmarkFailed(str(exc)) from exc
    rounds = runs or (module.QUICK_RUNS if quick else module.RUNS)
    with Progress() as progress, ExitStack() as stack:
        # Sockets lie in it, and their paths end at 107 bytes.
        private = tempfile.TemporaryDirectory(prefix=private_prefix(), dir="/tmp")
        workdir = stack.enter_context(private)
        result = module.run(Plan(quick, rounds, Path(workdir), stack, progress.say, extra))
    result.command = _as_typed(benchmark, quick=quick, runs=runs, extra=extra)
    document = json.loads(json.dumps(result.document()))
    table.show(document, module.COLUMNS, table.console())
    if json_to:
        save(document, json_to)
    if picture_to:
        module.draw(document, picture_to)
    if result.defects:
        raise BenchmarkFailed(f"{len(result.defects)} defects")


def _as_typed(benchmark: Benchmark, *, quick: bool, runs: int | None, extra: dict[str, Any]) -> str:
    """Return the command that measures the same again."""
    flags = {
        param.name: max(param.opts, key=len) for param in getattr(benchmark.load(), "OPTIONS", [])
    }
    words = [*COMMAND.split(), benchmark.name, *(["--quick"] if quick else [])]
    words += ["--runs", str(runs)] if runs else []
    for name, given in extra.items():
        values = given if isinstance(given, tuple) else () if given is None else (given,)
        for value in values:
            words += [flags[name], f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


def _expect_writable(flag: str, file: Path | None) -> None:
    """Find out before an hour of measuring whether its result can be saved."""
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=file.parent):
            pass
        if file.exists() and not os.access(file, os.W_OK):
            raise PermissionError(0, "Permission denied")
    except OSError as exc:
        raise click.UsageError(f"{flag}: cannot write {file}: {exc.strerror}") from exc


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _end(code: int, line: str) -> NoReturn:
    _say(line)
    sys.exit(code)


def _interrupt(signum: int, frame: object) -> NoReturn:
    # The first one counts. Another, in the middle of ending everything, would leave half of it.
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> None:
    """Run the command line. SIGTERM and SIGHUP end everything as Ctrl-C does."""
    for each in SIGNALS:
        signal.signal(each, _interrupt)
    try:
        status = cli.main(prog_name=COMMAND, standalone_mode=False)
    except click.ClickException as exc:
        show_error(exc, COMMAND)
        sys.exit(exc.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _end(130, "interrupted; everything that was started has been ended")
    except ModuleNotFoundError as exc:
        _end(FAILED, needs.told(exc))
    except Exception:  # noqa: BLE001 - a fault of the harness itself: show all of it
        traceback.print_exc()
        sys.exit(FAILED)
    sys.exit(status)
