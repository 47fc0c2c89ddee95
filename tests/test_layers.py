"""Imports go downwards only. This file holds the table; nothing else does.

Every `import` statement of src/rrpa_sidecar counts, also those inside functions, under
TYPE_CHECKING and those written relatively.
"""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

import pytest

SOURCE = pathlib.Path(__file__).parent.parent / "src"
PACKAGE = "rrpa_sidecar"

LEAVES = {"errors", "status", "clock", "config", "metrics", "logs"}

# layer → layers it may import, besides itself and rrpa_sidecar/__init__.py.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "clock": set(),
    "pb": set(),
    "status": {"errors"},
    "config": {"errors"},
    "logs": {"errors", "status", "clock"},
    "metrics": {"errors", "status", "clock"},
    "shm": LEAVES,
    "stream": {"shm"} | LEAVES,
    "control": {"stream", "shm", "pb"} | LEAVES,
    "frontend": {"control", "stream", "pb"} | LEAVES,
    "sidecar": {"frontend", "control", "stream", "shm"} | LEAVES,
    "edge": {"pb"} | LEAVES,
    "engine": {"shm", "pb"} | LEAVES,
    "client": {"pb", "errors", "status", "clock"},
    "cli": {"sidecar", "engine", "client", "edge", "shm", "pb"} | LEAVES,
    "__main__": {"cli"},
}

# Distribution modules that only some layers may use.
RESTRICTED: dict[str, set[str]] = {
    "grpc": {
        "pb",
        "frontend.grpcio",
        "control.attach_service",
        "engine",
        "client",
        "sidecar",
        "cli",
    },
    "grpc_health": {"frontend.health"},  # its messages alone, which import no gRPC
    "grpc_reflection": {"frontend.reflection"},
    "h2": {"frontend.batched"},
    # What a broker decides is pure; these three bring it together with the loop.
    "asyncio": {
        "frontend",
        "control.attach_service",
        "control.outbox",
        "control.pump",
        "sidecar",
        "client",
    },
    "uvloop": {"sidecar"},
    "click": {"cli"},
    "google": {
        "pb",
        "control.requests",
        "control.attach_service",
        "frontend",
        "engine",
        "client",
        "edge",
    },
    "posix_ipc": {"shm.directory"},
    # The sidecar never maps what an engine can shorten; only a writer maps its own file.
    "mmap": {"shm.lease"},
    "psutil": {"sidecar"},
    "prometheus_client": {"metrics", "sidecar"},
    "cyllama": {"engine"},
    "yaml": {"edge"},
    "cryptography": {"edge"},
    "rich": {"cli"},
    "subprocess": {"cli", "edge"},
    "multiprocessing": set(),
    # What measures the product is no part of it.
    "benchmarks": set(),
    "matplotlib": set(),
}
# Distributions with several modules: the others count as the first.
UNDER = {"h2": ("hpack", "hyperframe")}


# Interchangeable parts of a layer: the rest of the layer, and each other, know nothing of them.
ADAPTERS = ("frontend.grpcio", "frontend.batched", "engine.replay", "engine.llamacpp")


def imports_of(source: str, module: str, *, is_package: bool) -> Iterator[str]:
    """Yield the full dotted name of everything that `source`, the text of `module`, imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                keep = len(parts) - node.level + is_package
                base = ".".join([*parts[:keep], *filter(None, [base])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def layer_of(module: str) -> str:
    """Return the row of ALLOWED for `module`; config_kinds and config_checks are of config."""
    parts = module.split(".")
    if len(parts) < 2:
        return ""
    stem = parts[1].split("_")[0]
    return stem if stem in ALLOWED and parts[1] not in ALLOWED else parts[1]


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def breaches(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """Return a sentence for each import of `module` that the tables above forbid."""
    layer = layer_of(module)
    below = module.removeprefix(PACKAGE + ".")
    found = []
    for name in imports_of(source, module, is_package=is_package):
        top = name.partition(".")[0]
        if top == PACKAGE:
            target = layer_of(name)
            if target in ALLOWED and target != layer and target not in ALLOWED.get(layer, set()):
                found.append(f"{module} ({layer}) may not import {name} ({target})")
            for adapter in ADAPTERS:
                inside = f"{PACKAGE}.{adapter}"
                if adapter.split(".")[0] != layer or not within(name, inside):
                    continue
                if not within(module, inside):
                    found.append(f"{module} may not import {name}: {adapter} can be left out")
            continue
        for restricted, users in RESTRICTED.items():
            if top != restricted and top not in UNDER.get(restricted, ()):
                continue
            if not any(
                below == user or below.startswith((user + ".", user + "_")) for user in users
            ):
                found.append(f"{module} may not import {name}: only {sorted(users)} use it")
    return found


def modules() -> Iterator[tuple[str, pathlib.Path]]:
    for path in sorted((SOURCE / PACKAGE).rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def test_every_import_goes_downwards() -> None:
    found = [
        breach
        for module, path in modules()
        for breach in breaches(path.read_text(), module, is_package=path.name == "__init__.py")
    ]
    assert not found, "\n".join(found)


def test_every_module_belongs_to_a_layer_of_the_table() -> None:
    unknown = {layer_of(module) for module, _ in modules()} - set(ALLOWED) - {""}
    assert not unknown, f"give them a row in ALLOWED: {unknown}"


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("rrpa_sidecar.shm.reader", "import asyncio"),
        ("rrpa_sidecar.shm.reader", "from rrpa_sidecar.control import broker"),
        ("rrpa_sidecar.stream.text", "from rrpa_sidecar.pb import rrpa_pb2"),
        ("rrpa_sidecar.stream.text", "import grpc"),
        ("rrpa_sidecar.control.broker", "from grpc import aio"),
        ("rrpa_sidecar.control.broker", "import rrpa_sidecar.frontend.grpcio.service"),
        ("rrpa_sidecar.engine.attach", "from rrpa_sidecar.control.broker import Broker"),
        ("rrpa_sidecar.engine.attach", "from rrpa_sidecar import sidecar"),
        ("rrpa_sidecar.errors", "import rrpa_sidecar.status"),
        ("rrpa_sidecar.frontend.grpcio.service", "def f():\n    import prometheus_client"),
        ("rrpa_sidecar.shm.reader", "from ..control import broker"),
        ("rrpa_sidecar.shm.reader", "def lazily():\n    from ..stream.text import Cut"),
        ("rrpa_sidecar.metrics", "import click"),
        ("rrpa_sidecar.control.pump", "import subprocess"),
        ("rrpa_sidecar.frontend.grpcio.health", "from multiprocessing import shared_memory"),
        ("rrpa_sidecar.control.broker", "import asyncio"),
        ("rrpa_sidecar.control.watch", "import grpc"),
        ("rrpa_sidecar.stream.stream", "from google.protobuf import message"),
        ("rrpa_sidecar.shm.reader", "import mmap"),
        ("rrpa_sidecar.engine.files", "import posix_ipc"),
        ("rrpa_sidecar.edge.render", "from rrpa_sidecar.frontend import metadata"),
        ("rrpa_sidecar.edge.render", "from rrpa_sidecar.sidecar.daemon import run"),
        ("rrpa_sidecar.edge.render", "from rrpa_sidecar.shm import layout"),
        ("rrpa_sidecar.edge.render", "import grpc"),
        ("rrpa_sidecar.cli.demo", "from rrpa_sidecar.control.broker import Broker"),
        ("rrpa_sidecar.cli.demo", "from rrpa_sidecar.frontend.grpcio import server"),
        ("rrpa_sidecar.cli.demo", "import yaml"),
        ("rrpa_sidecar.sidecar.daemon", "from rrpa_sidecar.edge import render"),
        ("rrpa_sidecar.sidecar.daemon", "from rrpa_sidecar.engine import attach"),
        ("rrpa_sidecar.sidecar.daemon", "from rrpa_sidecar.cli import serve"),
        ("rrpa_sidecar.client.calls", "from rrpa_sidecar.config import Config"),
        ("rrpa_sidecar.config", "from rrpa_sidecar.shm import layout"),
        ("rrpa_sidecar.metrics_families", "from rrpa_sidecar.control import broker"),
        ("rrpa_sidecar.pb.rrpa_pb2", "from rrpa_sidecar import errors"),
        ("rrpa_sidecar", "from rrpa_sidecar.engine import attach"),
        ("rrpa_sidecar.__main__", "from rrpa_sidecar.sidecar.daemon import run"),
        ("rrpa_sidecar.frontend.call", "from rrpa_sidecar.frontend.grpcio import handlers"),
        ("rrpa_sidecar.frontend.batched.server", "import grpc"),
        ("rrpa_sidecar.frontend.batched.server", "from rrpa_sidecar.frontend.grpcio import server"),
        ("rrpa_sidecar.frontend.grpcio.server", "import h2.connection"),
        ("rrpa_sidecar.engine.job", "from rrpa_sidecar.engine.replay.script import Script"),
        ("rrpa_sidecar.cli.demo", "from benchmarks.processes import start"),
        ("rrpa_sidecar.engine.replay.engine", "from rrpa_sidecar.engine import llamacpp"),
    ],
)
def test_a_forbidden_import_is_found(module: str, source: str) -> None:
    assert breaches(source, module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("rrpa_sidecar.control.attach_service", "import grpc.aio"),
        ("rrpa_sidecar.control.broker", "from rrpa_sidecar.shm.reader import LogReader"),
        ("rrpa_sidecar.stream.stream", "from . import text"),
        ("rrpa_sidecar.stream.stream", "from rrpa_sidecar import __version__"),
        ("rrpa_sidecar.frontend.health", "from grpc_health.v1 import health_pb2"),
        ("rrpa_sidecar.frontend.grpcio.server", "from rrpa_sidecar.frontend.grpcio import health"),
        ("rrpa_sidecar.sidecar.daemon", "from rrpa_sidecar.frontend.grpcio import server"),
        ("rrpa_sidecar.engine.replay.engine", "from rrpa_sidecar.engine.job import Job"),
    ],
)
def test_an_allowed_import_is_not_found(module: str, source: str) -> None:
    assert not breaches(source, module)
