"""Imports of benchmarks/ go downwards, and few of them reach into the product.

What a benchmark measures it starts as a process; what it knows of the product is the contract
with clients (`pb`), and how Envoy is configured. Its insides are for one module alone, so that a
change in them breaks one benchmark and not all.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.test_layers import imports_of, within

ROOT = pathlib.Path(__file__).parent.parent.parent

# From the bottom up. A module may import those of the rows below its own, and none beside it; a
# package stands for all that it holds.
ROWS: tuple[tuple[str, ...], ...] = (
    ("spread", "plan", "cpu", "machine", "needs", "progress"),
    ("result", "table", "picture", "building", "pinning", "options"),
    ("processes",),
    ("load", "servers"),
    ("measuring", "token_path"),
    ("rounds", "servers.peers.grpcaio_shapes"),
    ("paced", "latency", "first_token", "burst", "scale", "start", "micro", "soak"),
    ("published", "registry"),
    ("cli",),
    ("__main__",),
)

# What of the product a module may know, besides `pb`; () is nothing more.
PRODUCT: dict[str, tuple[str, ...]] = {
    "servers.envoy": ("config", "config_kinds", "edge"),
    "servers.peers.grpcaio_server": ("engine.replay.source",),
    "cli": ("cli.usage",),  # how an error of use is shown
    "token_path": ("",),
    "soak.engine": ("engine",),
}

# Distributions that only some modules may use: what is left out leaves the others working.
RESTRICTED: dict[str, tuple[str, ...]] = {
    "matplotlib": ("picture",),
    "rich": ("table", "progress"),
    "grpc": ("start", "servers.peers", "soak.client"),
    "uvloop": ("token_path", "servers.peers"),
    "h2": ("token_path",),
    "h11": ("servers.peers",),
    "yaml": ("servers.peers",),
    "fastapi": ("servers.peers.apps",),
    "pydantic": ("servers.peers.apps",),
    "tests": (),
}


def row_of(module: str) -> int | None:
    """Return the row of `module`, without "benchmarks."; the longest name that fits decides."""
    fits = [
        (len(name), number)
        for number, names in enumerate(ROWS)
        for name in names
        if within(module, name)
    ]
    return max(fits)[1] if fits else None


def breaches(source: str, module: str) -> Iterator[str]:
    """Yield a sentence for each import of benchmarks.`module` that the tables above forbid."""
    ours = row_of(module)
    for name in imports_of(source, f"benchmarks.{module}", is_package=False):
        top, _, rest = name.partition(".")
        if top == "benchmarks":
            row = row_of(rest)
            same = any(within(module, name) and within(rest, name) for name in sum(ROWS, ()))
            if not same and (ours is None or row is None or row >= ours):
                yield f"{module} may not import {name}: it is not below"
        elif top == "rrpa_sidecar":
            allowed = ("pb", *PRODUCT.get(module, ()))
            if not any(each == "" or within(rest, each) for each in allowed):
                yield f"{module} may not import {name}: it knows {', '.join(allowed)} alone"
        elif top in RESTRICTED and not any(within(module, each) for each in RESTRICTED[top]):
            yield f"{module} may not import {name}: only {RESTRICTED[top]} use it"


def modules() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "benchmarks").rglob("*.py")):
        parts = path.relative_to(ROOT / "benchmarks").with_suffix("").parts
        if ".build" in parts:
            continue
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            yield name, path.read_text()


def test_every_import_goes_downwards() -> None:
    found = [breach for module, source in modules() for breach in breaches(source, module)]
    assert not found, "\n".join(found)


def test_every_module_has_a_row() -> None:
    unknown = [module for module, _ in modules() if row_of(module) is None]
    assert not unknown, f"give them a row in ROWS: {unknown}"


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("spread", "from benchmarks.table import Column"),
        ("measuring", "from benchmarks.paced import LOADS"),
        ("latency", "from benchmarks.paced import CARRIED"),
        ("servers.product", "from benchmarks.measuring import measure"),
        ("load.client", "from benchmarks.servers import Running"),
        ("micro", "from rrpa_sidecar.shm.reader import LogReader"),
        ("paced", "from rrpa_sidecar.metrics import Metrics"),
        ("paced", "def f():\n    import matplotlib"),
        ("cpu", "from tests.harness import processes"),
        ("servers.product", "import grpc"),
    ],
)
def test_a_forbidden_import_is_found(module: str, source: str) -> None:
    assert list(breaches(source, module))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("paced", "from benchmarks.rounds import Rounds"),
        ("servers.peers.smg", "from benchmarks.servers.peers.gateway import Gateway"),
        ("servers.peers.grpcaio_shapes", "from benchmarks.measuring import measure"),
        ("token_path", "from rrpa_sidecar.shm.reader import LogReader"),
        ("burst", "from rrpa_sidecar.pb import rrpa_pb2"),
    ],
)
def test_an_allowed_import_is_not_found(module: str, source: str) -> None:
    assert not list(breaches(source, module))
