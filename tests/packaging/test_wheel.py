"""The wheel, in environments such as users have (field-bugs.md G41)."""

from __future__ import annotations

import email
import json
import pathlib
import re
import sys
import zipfile
from importlib import metadata

import pytest
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.packaging import environments
from tests.packaging.environments import PB, ROOT, Environment, declared, floor, run
from tests.test_layers import imports_of

# What declared dependencies bring with them. A new name here is a decision, not an accident.
BROUGHT_ALONG = {"typing-extensions"}
ONE_STREAM = str(ROOT / "tests/packaging/one_stream.py")
CHECKOUT = {"PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The wheel, built from the sdist, as an index would serve it."""
    out = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)])
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="session")
def floor_environment(wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel with the lowest version of everything, and the floor's grpcio-tools."""
    made = Environment(tmp_path_factory.mktemp("floor"))
    made.install(str(wheel), *environments.floor_pins(), *environments.floor_tools_pins())
    return made


@pytest.fixture(scope="session")
def newest_environment(
    wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """The wheel as `pip install rrpa-sidecar` gives it today."""
    made = Environment(tmp_path_factory.mktemp("newest"))
    made.install(str(wheel))
    return made


def test_wheel_holds_the_package_its_types_its_format_page_and_nothing_else(
    wheel: pathlib.Path,
) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in ("py.typed", "shm/FORMAT.md", "pb/rrpa_pb2.pyi"):
        assert f"rrpa_sidecar/{wanted}" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"rrpa_sidecar"}


def test_wheel_declares_its_license_its_pythons_its_extras_and_one_command(
    wheel: pathlib.Path,
) -> None:
    archive = zipfile.ZipFile(wheel)
    (about,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    declares = email.message_from_bytes(archive.read(about))
    assert declares["License-Expression"] == "Apache-2.0"
    assert declares["Requires-Python"] == ">=" + environments.pythons()[0]
    assert {"llamacpp", "envoy", "demo", "test", "bench"} == set(
        declares.get_all("Provides-Extra", [])
    )
    entries = archive.read(about.replace("METADATA", "entry_points.txt")).decode()
    assert entries.split("\n", 1)[1].strip() == "rrpa = rrpa_sidecar.cli:main"
    assert entries.startswith("[console_scripts]\n")


# In environments of their own, or only where somebody has installed them.
ELSEWHERE = {"fastapi", "pydantic", "atheris"}


@pytest.mark.parametrize(
    ("folder", "extras"),
    [
        ("src/rrpa_sidecar", ("llamacpp", "envoy", "demo")),
        ("benchmarks", ("envoy", "demo", "bench")),
        ("tests", ("llamacpp", "envoy", "demo", "bench", "test")),
    ],
)
def test_what_is_imported_is_declared(folder: str, extras: tuple[str, ...]) -> None:
    found = distributions_of(folder)
    wanted = {*declared(), *environments.declared_by(*extras)}
    assert {name for name, brought_by in found.items() if not brought_by & wanted} == set()


def test_what_is_declared_is_imported() -> None:
    found = distributions_of("src/rrpa_sidecar")
    assert set(declared()) - set().union(*found.values()) == set()


def distributions_of(folder: str) -> dict[str, set[str]]:
    """Return top-level module → distributions that bring it, of all that a folder imports."""
    ours = {"rrpa_sidecar", "benchmarks", "tests", ""}
    imported = {
        name.partition(".")[0]
        for path in (ROOT / folder).rglob("*.py")
        if ".build" not in path.parts
        for name in imports_of(path.read_text(), "a.b", is_package=True)
        if not name.startswith("a.")
    } - {*sys.stdlib_module_names, *ours, *ELSEWHERE}
    brings = metadata.packages_distributions()
    return {name: {canonicalize_name(each) for each in brings.get(name, ())} for name in imported}


def test_installed_command_runs(newest_environment: Environment) -> None:
    command = pathlib.Path(newest_environment.python).with_name("rrpa")
    for asked in (["--version"], ["serve", "--help"], ["engine", "replay", "--help"]):
        assert run([str(command), *asked])


def test_daemon_install_brings_only_what_is_declared(newest_environment: Environment) -> None:
    listed = json.loads(newest_environment.pip("list", "--format=json"))
    installed = {canonicalize_name(package["name"]) for package in listed}
    expected = {"rrpa-sidecar", *declared(), *BROUGHT_ALONG}
    assert installed - {"pip", "setuptools"} == expected
    newest_environment.pip("check")


def test_lowest_declared_versions_serve_a_stream_without_a_warning(
    floor_environment: Environment,
) -> None:
    listed = json.loads(floor_environment.pip("list", "--format=json"))
    installed = {canonicalize_name(p["name"]): Version(p["version"]) for p in listed}
    assert {name: installed[name] for name in declared()} == {n: floor(n) for n in declared()}
    assert "bytes " in floor_environment.run("-W", "error", ONE_STREAM, env=CHECKOUT)


def test_lowest_declared_versions_refuse_broken_requests_as_the_newest_do(
    floor_environment: Environment,
) -> None:
    floor_environment.install("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis")
    chosen = "CONNECT or NUL or break or integer"
    attacks = str(ROOT / "tests/hostile/test_attacks.py")
    asked = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"))
    said = floor_environment.run(*asked, attacks, "-k", chosen, env=CHECKOUT)
    assert "passed" in said


def test_newest_versions_serve_a_stream_without_a_warning(newest_environment: Environment) -> None:
    assert "bytes " in newest_environment.run("-W", "error", ONE_STREAM, env=CHECKOUT)


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("demo", "demo"),
        ("demo --engine replay", "demo"),
        ("envoy-config --out /nowhere", "envoy"),
        ("engine llamacpp", "llamacpp"),
        ("engine llamacpp --model-path /dev/null", "llamacpp"),
    ],
)
def test_a_command_without_its_extra_says_in_one_line_which_to_install(
    newest_environment: Environment, command: str, extra: str
) -> None:
    done = newest_environment.process("-m", "rrpa_sidecar", *command.split())
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert line.startswith("rrpa: ")
    assert f"pip install 'rrpa-sidecar[{extra}]'" in line


def test_package_installs_beside_one_that_needs_protobuf_6(
    newest_environment: Environment, wheel: pathlib.Path
) -> None:
    report = json.loads(
        newest_environment.pip(
            *("install", "-qq", "--dry-run", "--ignore-installed", "--report", "-"),
            *(str(wheel), "protobuf<7"),
        )
    )
    chosen = {one["metadata"]["name"]: one["metadata"]["version"] for one in report["install"]}
    assert chosen["protobuf"].startswith("6.")
    assert "rrpa-sidecar" in {canonicalize_name(name) for name in chosen}


@pytest.mark.parametrize("minor", environments.pythons())
def test_declared_python_serves_a_stream(
    minor: str, wheel: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    python = environments.find_python(minor)
    if python is None:
        pytest.skip(f"no Python {minor} on this machine")
    if python == sys.executable:
        pytest.skip(f"Python {minor} runs this suite")
    environment = Environment(tmp_path / "venv", python)
    environment.install(str(wheel))
    assert "bytes " in environment.run("-W", "error", ONE_STREAM, env=CHECKOUT)


def test_committed_stubs_are_what_the_floor_generates(
    floor_environment: Environment, tmp_path: pathlib.Path
) -> None:
    floor_environment.run(str(ROOT / "proto/generate.py"), str(tmp_path))
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    committed = {path.name: path.read_text() for path in PB.glob("*_pb2*")}
    assert made.keys() == committed.keys()
    for name in made:
        assert made[name] == committed[name], f"{name} is stale: run `make proto`"


def test_gencode_versions_are_the_declared_floors() -> None:
    for path in PB.glob("*_pb2.py"):
        found = re.search(r"Domain\.PUBLIC,\s*(\d+),\s*(\d+),\s*(\d+),", path.read_text())
        assert found, path
        assert Version(".".join(found.groups())) == floor("protobuf"), path
    for path in PB.glob("*_pb2_grpc.py"):
        found = re.search(r"GRPC_GENERATED_VERSION = '([\d.]+)'", path.read_text())
        assert found, path
        assert Version(found[1]) == floor("grpcio"), path


def test_the_three_grpc_packages_declare_one_floor() -> None:
    assert floor("grpcio") == floor("grpcio-health-checking") == floor("grpcio-reflection")
