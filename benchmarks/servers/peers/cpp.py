"""C++ gRPC, Debian's library: the fastest that a gRPC library is used today."""

from __future__ import annotations

import shlex
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from benchmarks.building import built, need, output
from benchmarks.machine import ROOT
from benchmarks.processes import start
from benchmarks.servers import PacedLoad, Running, grpc_running

SOURCE = Path(__file__).parent / "cpp" / "server.cc"
PROTO = Path("rrpa/v1/rrpa.proto")
FLAGS = ("-std=c++17", "-O2", "-DNDEBUG")
LIBRARIES = ("grpc++", "protobuf")
PACKAGES = "g++ pkg-config libgrpc++-dev libprotobuf-dev protobuf-compiler-grpc"
JOBS = 2


class CppGrpc:
    """See cpp/server.cc."""

    name = "C++ gRPC"
    shape = (
        "C++ gRPC, callback API and generated code, -O2; tokens are already in its memory and one"
        " thread gives each stream its token at each step, so it reads no engine"
    )

    def start(self, stack: ExitStack, load: PacedLoad, workdir: Path) -> Running:
        address = f"unix:{workdir}/cpp.sock"
        argv = [str(program()), address, str(load.tokens_per_s), load.token.hex()]
        child = start(stack, argv, name="cpp", workdir=workdir, ready="ready")
        return grpc_running(address, {"server": child.pid}, load)


def program() -> Path:
    """Return the server, compiled if need be; that takes about a minute.

    Raises CannotRun when a tool or library is missing, with what to install.
    """
    compiler = need("g++", PACKAGES)
    config = need("pkg-config", PACKAGES)
    flags = shlex.split(output([config, "--cflags", "--libs", *LIBRARIES], PACKAGES))
    versions = output([config, "--modversion", *LIBRARIES], PACKAGES)
    sources = (SOURCE.read_bytes(), (ROOT / "proto" / PROTO).read_bytes())
    made_of = (*sources, " ".join((compiler, *FLAGS, *flags, versions)).encode())
    return built("cpp-grpc", made_of, lambda workdir: _build(workdir, compiler, flags))


def _build(workdir: Path, compiler: str, flags: list[str]) -> Path:
    # google/api/*.proto come with the Python package that the product needs anyway.
    import google.api  # type: ignore[import-untyped]

    (common,) = {Path(place).parent.parent for place in google.api.__path__}
    protos = ["google/api/annotations.proto", "google/api/http.proto", "google/api/httpbody.proto"]
    argv = [need("protoc", PACKAGES), f"-I{ROOT / 'proto'}", f"-I{common}", f"--cpp_out={workdir}"]
    output([*argv, *protos, str(PROTO)], PACKAGES)
    plugin = need("grpc_cpp_plugin", PACKAGES)
    argv += [f"--grpc_out={workdir}", f"--plugin=protoc-gen-grpc={plugin}"]
    output([*argv, str(PROTO)], PACKAGES)
    options = [flag for flag in flags if not flag.startswith("-l")]

    def compiled(source: Path) -> str:
        made = str(workdir / f"{source.name}.o")
        here = [f"-I{workdir}", "-c", str(source), "-o", made]
        output([compiler, *FLAGS, *options, *here], PACKAGES)
        return made

    with ThreadPoolExecutor(JOBS) as pool:
        objects = list(pool.map(compiled, (SOURCE, *sorted(workdir.rglob("*.cc")))))
    made = workdir / "server"
    output([compiler, *objects, "-o", str(made), *flags], PACKAGES)
    return made
