"""Builds the load client, runs it and returns what it counted.

A run has five moments, so that the CPU of the servers is read at the edges of the client's own
window:

    client → "ready"   every answer has its first message
    "go"   → client    at any time after that; the window begins, --warm-s after "ready" at least
    client → "begin"   the window has begun
    client → "end"     it is over; the load goes on
    "ok"   → client    the report may be printed

    with LoadClient(load, workdir) as client:
        client.begin()
        meter.start()
        client.wait_end()
        meter.stop()
        report = client.report()
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

SOURCES = Path(__file__).parent
BUILD = SOURCES.parent / ".build"
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror=implicit")
LIBRARIES = ("-lnghttp2", "-lm")
GRACE_S = 30.0
"""Past the times that the client itself keeps: one that is stuck is an error and not a wait."""


class LoadError(Exception):
    """The load could not be built or run, or its answers were wrong; one line."""


@dataclass(frozen=True)
class Load:
    """One run of the client; what each field means is in `client --help`.

    connect: "unix:PATH" or "HOST:PORT".
    body: what follows the headers, as it is; a gRPC request with its five bytes in front.
    headers: content-type, te and accept fit the protocol unless they are given here.
    text: what all answers repeat, byte for byte; None compares nothing.
    """

    connect: str
    body: bytes
    path: str = "/rrpa.v1.RRPAService/CreateStream"
    headers: Mapping[str, str] = field(default_factory=dict)
    protocol: str = "grpc"
    connections: int = 1
    streams: int = 1
    seconds: float = 5.0
    warm_s: float = 1.0
    ready_timeout_s: float = 60.0
    opening: int | None = None
    authority: str | None = None
    stamps: bool = False
    reopen: bool = False
    until_ended: bool = False
    offsets: bool = True
    text: bytes | None = None
    together: int | None = None
    gap_s: float | None = None
    requests_per_s: float | None = None
    read_bytes_per_s: float | None = None
    pause_s: float | None = None
    window_bytes: int | None = None
    connection_window_bytes: int | None = None

    def argv(self, workdir: Path) -> list[str]:
        """Return the client's arguments; writes the files that they name to `workdir`."""
        name = f"load-{hashlib.sha256(repr(self).encode()).hexdigest()[:12]}"
        given: list[str] = []
        for option in _OPTIONS:
            value = getattr(self, option)
            if value is not None:
                given += ["--" + option.replace("_", "-"), str(value)]
        for flag in _FLAGS:
            if getattr(self, flag):
                given.append("--" + flag.replace("_", "-"))
        if not self.offsets:
            given.append("--no-offsets")
        for file, content in (("body", self.body), ("text", self.text)):
            if content is not None:
                path = workdir / f"{name}.{file}"
                path.write_bytes(content)
                given += [f"--{file}", str(path)]
        for key, value in self.headers.items():
            given += ["--header", f"{key}:{value}"]
        return given


_FLAGS = ("stamps", "reopen", "until_ended")
_ELSEWHERE = {*_FLAGS, "offsets", "body", "text", "headers"}
_OPTIONS = tuple(name for name in Load.__dataclass_fields__ if name not in _ELSEWHERE)


def build() -> Path:
    """Return the client's path; compiles it if its sources, flags or compiler changed.

    Raises:
      LoadError: it cannot be compiled, with the compiler's first line.
    """
    compiler = os.environ.get("CC", "cc")
    files = sorted((*SOURCES.glob("*.c"), *SOURCES.glob("*.h")))
    made_of = hashlib.sha256(" ".join((compiler, *FLAGS, *LIBRARIES)).encode())
    for file in files:
        made_of.update(file.name.encode() + file.read_bytes())
    program = BUILD / f"client-{made_of.hexdigest()[:16]}"
    if program.exists():
        return program
    BUILD.mkdir(exist_ok=True)
    print(
        f"compile: load client, once; it is kept in benchmarks/{BUILD.name}",
        file=sys.stderr,
        flush=True,
    )
    # Two runs may build at once: each its own file, and the last rename wins.
    part = program.with_suffix(f".{os.getpid()}")
    sources = [str(file) for file in files if file.suffix == ".c"]
    command = [compiler, *FLAGS, "-o", str(part), *sources, *LIBRARIES]
    hint = "install gcc libc6-dev libnghttp2-dev (Debian), or run make bench"
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    except OSError as exc:
        raise LoadError(f"load client: no C compiler {compiler!r}; {hint}") from exc
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no words"]
        raise LoadError(f"load client: {compiler}: {lines[0].strip()}; {hint}")
    part.rename(program)
    return program


class LoadClient:
    """A client that runs. Leaving the `with` block ends it, whatever it was doing."""

    def __init__(self, load: Load, workdir: Path, *, cpus: set[int] | None = None) -> None:
        """cpus: where it may run; None leaves it to the kernel."""
        self.load = load
        self._program = build()
        self._workdir = workdir
        self._cpus = cpus
        self._pending = b""

    def __enter__(self) -> LoadClient:
        self._process = subprocess.Popen(
            [str(self._program), *self.load.argv(self._workdir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        if self._cpus is not None:
            os.sched_setaffinity(self._process.pid, self._cpus)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> None:
        """Return when every answer has its first message.

        Raises:
          LoadError: not within `ready_timeout_s`; the client's own words.
        """
        self._wait_for(b"ready", self.load.ready_timeout_s + GRACE_S)

    def begin(self) -> None:
        """Return when the window has begun. Waits for "ready" if nobody has."""
        if not self._heard_ready:
            self.wait_ready()
        self._say(b"go\n")
        self._wait_for(b"begin", self.load.warm_s + GRACE_S)

    def wait_end(self) -> None:
        """Return when the window is over; the load goes on until `report`."""
        self._wait_for(b"end", self.load.seconds + GRACE_S)

    def report(self) -> dict[str, Any]:
        """Return what the client counted, and end it.

        messages, bytes, data_frames, wire_bytes, asked, ended: in the window of `window_s`
        seconds; messages are those with tokens, bytes their payload. `total` is since the start.
        streams_open: now. resets, goaways, errors, first_error: since the start; the kinds of
        errors are in client.h. cpu_s: the client's own CPU time in the window.
        latency_us: from each stamp in the window to the read(2) that brought it; first_us: from
        asking to the first message; first_in_us and first_out_us: its parts before and after
        the stamp. Each is None, or p50 to p99.99, max, mean and count.
        """
        self._say(b"ok\n")
        try:
            out, words = self._process.communicate(timeout=GRACE_S)
        except subprocess.TimeoutExpired as exc:
            raise LoadError("load client: no report after the window") from exc
        if self._process.returncode or not out:
            raise LoadError(_last_line(words, self._process.returncode))
        report: dict[str, Any] = json.loads(out)
        return report

    _heard_ready = False

    def _say(self, word: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(word)
            self._process.stdin.flush()
        except BrokenPipeError as exc:
            raise self._died() from exc

    def _wait_for(self, word: bytes, timeout_s: float) -> None:
        assert self._process.stderr is not None
        descriptor, until_s = self._process.stderr.fileno(), time.monotonic() + timeout_s
        while b"\n" not in self._pending:
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
                raise LoadError(f"load client: no {word.decode()!r} after {timeout_s:g} s")
            got = os.read(descriptor, 4096)
            if not got:
                raise self._died()
            self._pending += got
        line, _, self._pending = self._pending.partition(b"\n")
        if line != word:
            raise LoadError(line.decode(errors="replace"))
        self._heard_ready = True

    def _died(self) -> LoadError:
        return LoadError(_last_line(self._pending, self._process.wait(GRACE_S)))


def _last_line(words: bytes, status: int) -> str:
    lines = words.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"load client: ended with status {status}"


def run(load: Load, workdir: Path, *, cpus: set[int] | None = None) -> dict[str, Any]:
    """Return the report of one whole run, for those who need nothing at the window's edges."""
    with LoadClient(load, workdir, cpus=cpus) as client:
        client.begin()
        client.wait_end()
        return client.report()


def require_clean(report: Mapping[str, Any]) -> None:
    """Raise unless every answer was right: no error, no reset, no GOAWAY.

    Raises:
      LoadError: names the counts and the first fault.
    """
    found = {**report["errors"]}
    found |= {key: report[key] for key in ("resets", "goaways") if report[key]}
    if found:
        counts = ", ".join(f"{count} {kind}" for kind, count in found.items())
        raise LoadError(
            f"load client: expected right answers, found {counts}; "
            f"the first: {report['first_error'] or 'no words'}"
        )
