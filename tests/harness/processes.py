"""The product's real processes, started for a test and always ended after it.

    with Stack(engine={"capacity": 8}) as stack:
        channel = grpc.insecure_channel(stack.daemon.grpc_address)

Everything lies in private short directories, ports are the kernel's choice, and processes
are ended by their own id. When a start fails, the error holds what the process said.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pathlib
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from typing import IO, Any, Self

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
PORTS_OF_A_WORKER = 250


class ProcessFailed(AssertionError):
    """A process of the product ended, or said nothing, when it should have been ready."""


def flags(settings: dict[str, Any]) -> list[str]:
    """Turn `drain_timeout_s=5` into `--drain-timeout 5`; True gives the bare flag, None nothing."""
    argv = []
    for name, value in settings.items():
        flag = "--" + name.removesuffix("_s").replace("_", "-")
        if value is True:
            argv.append(flag)
        elif value is not None and value is not False:
            argv += [flag, str(value)]
    return argv


class Process:
    """One child process with a line on stdout that says when it is ready.

    Use as a context manager, or call `start` and `stop`. stderr goes to a file and is quoted
    in failures.
    """

    def __init__(self, argv: list[str], *, ready: str = "", env: dict[str, str] | None = None):
        self.argv = argv
        self._ready = ready
        self._env = env
        self._child: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._said = ""
        self.ready_line = ""

    # -- life ----------------------------------------------------------------------------

    def start(self, timeout_s: float = START_TIMEOUT_S) -> Self:
        self.launch()
        try:
            self.wait_ready(timeout_s)
        except BaseException:
            self.stop()
            raise
        return self

    def launch(self) -> None:
        """Start the child, again perhaps, and return at once."""
        if self._stderr.closed:
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self._child = subprocess.Popen(
            self.argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if self._ready else subprocess.DEVNULL,
            stderr=self._stderr,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(self._env or {})},
        )

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait for the line that begins with `ready`."""
        if not self._ready:
            return
        assert self._child is not None
        assert self._child.stdout is not None
        deadline = time.monotonic() + timeout_s
        seen = b""
        while True:
            for line in seen.split(b"\n")[:-1]:
                if line.startswith(self._ready.encode()):
                    self.ready_line = line.decode()
                    return
            left = deadline - time.monotonic()
            if left <= 0:
                raise ProcessFailed(f"not ready in {timeout_s} s; {self.said(seen)}")
            if not select.select([self._child.stdout], [], [], left)[0]:
                continue
            part = os.read(self._child.stdout.fileno(), 65536)
            if not part:
                self._child.wait(STOP_TIMEOUT_S)
                raise ProcessFailed(f"ended with {self.returncode}; {self.said(seen)}")
            seen += part

    def stop(self, sig: int = signal.SIGTERM, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """End the child and return its exit code; kill it if `sig` does not end it in time."""
        child = self._child
        if child is None:
            return 0
        if child.poll() is None:
            # A stopped child cannot take SIGTERM.
            child.send_signal(signal.SIGCONT)
            child.send_signal(sig)
            try:
                child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
                raise ProcessFailed(
                    f"still alive {timeout_s} s after signal {sig}; {self.said()}"
                ) from None
        if child.stdout:
            child.stdout.close()
        if not self._stderr.closed:
            self._said = self.stderr
            self._stderr.close()
        return child.returncode

    def kill(self) -> None:
        """SIGKILL, and wait."""
        assert self._child is not None
        self._child.kill()
        self._child.wait()

    def signal(self, sig: int) -> None:
        assert self._child is not None
        self._child.send_signal(sig)

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        assert self._child is not None
        return self._child.wait(timeout_s)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # -- what it says and uses -----------------------------------------------------------

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    @property
    def returncode(self) -> int | None:
        return self._child.poll() if self._child else None

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def stderr(self) -> str:
        """All that it has written to stderr so far."""
        if self._stderr.closed:
            return self._said
        size = os.fstat(self._stderr.fileno()).st_size
        return os.pread(self._stderr.fileno(), size, 0).decode("utf-8", "replace")

    def said(self, stdout: bytes = b"") -> str:
        return f"$ {' '.join(self.argv)}\n{stdout.decode('utf-8', 'replace')}{self.stderr[-6000:]}"

    def cpu_s(self) -> float:
        """CPU seconds, user and system, that the process's living threads have used.

        From schedstat, in nanoseconds: the ticks of /proc/PID/stat charge a whole tick to a
        thread that a timer has just woken, which is what an idle daemon's threads are.
        """
        threads = list(pathlib.Path(f"/proc/{self.pid}/task").glob("*/schedstat"))
        assert threads, "this kernel keeps no schedstat, so CPU cannot be measured"
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9

    def rss_bytes(self) -> int:
        """Resident memory."""
        pages = int(pathlib.Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> list[str]:
        """What each open descriptor is, as /proc names it."""
        folder = pathlib.Path(f"/proc/{self.pid}/fd")
        names = []
        for entry in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                names.append(os.readlink(entry))
        return names


@functools.cache
def _lasting_ports() -> Iterator[int]:
    """Yield ports below those that the kernel gives away: a range for each worker of a run."""
    lowest = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    first = lowest - PORTS_OF_A_WORKER * (1 + os.getpid() % 64)
    return itertools.cycle(range(first, first + PORTS_OF_A_WORKER))


def lasting_address() -> str:
    """Return a `localhost:PORT` at which a daemon can be ended and started again.

    One of the kernel's choice may be another process's, or that of a client's own connection, by
    the time that the daemon comes back.
    """
    for port in _lasting_ports():
        with contextlib.suppress(OSError), socket.create_server(("localhost", port)):
            break
    return f"localhost:{port}"


class Daemon(Process):
    """`rrpa serve` on ports of the kernel's choice, sockets and shared memory of its own.

    Keyword arguments are the names of settings: `Daemon(queue_limit=0, shm_bytes=2**20)`.
    """

    def __init__(self, *, env: dict[str, str] | None = None, **settings: Any):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir="/tmp", prefix="rrpa-"))
        given = settings.get("shm_dir")
        self._own_shm = None if given else tempfile.mkdtemp(dir="/dev/shm", prefix="rrpa-test-")
        self.shm_dir = pathlib.Path(given or self._own_shm)
        self.settings: dict[str, Any] = {
            "listen": "localhost:0",
            "engine_socket": self.folder / "rrpa.sock",
            "envoy_socket": self.folder / "envoy.sock",
            "metrics_listen": "localhost:0",
            "drain_timeout_s": 2,
            **settings,
            "shm_dir": self.shm_dir,
        }
        argv = [sys.executable, "-m", "rrpa_sidecar", "serve", *flags(self.settings)]
        super().__init__(argv, ready="rrpa ready ", env=env)

    def _word(self, name: str) -> str:
        found = re.search(rf" {name}=(\S+)", self.ready_line)
        assert found, f"no {name}= in {self.ready_line!r}"
        return found[1]

    @property
    def grpc_addresses(self) -> list[str]:
        return self._word("grpc").split(",")

    @property
    def grpc_address(self) -> str:
        return self.grpc_addresses[0]

    @property
    def engine_socket(self) -> str:
        return str(self.settings["engine_socket"])

    @property
    def envoy_socket(self) -> str:
        return str(self.settings["envoy_socket"])

    @property
    def metrics_address(self) -> str:
        return self._word("metrics").split(",")[0]

    @property
    def metrics_url(self) -> str:
        return f"http://{self.metrics_address}/metrics"

    def metrics(self) -> dict[str, float]:
        """Scrape: `{'rrpa_active_streams': 0.0, 'rrpa_streams_total{code="OK",…}': 3.0}`."""
        with urllib.request.urlopen(self.metrics_url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def metric(self, name: str, **labels: str) -> float:
        """Return one sample, or the sum of all samples of `name` with these labels."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        samples = self.metrics().items()
        found = [
            value
            for key, value in samples
            if key.split("{")[0] == name and all(part in key for part in wanted)
        ]
        assert found, f"no sample of {name} with {labels}"
        return sum(found)

    def segments(self) -> list[str]:
        """Names of the streams' files that exist now (engines' tables are not streams)."""
        names = (entry.name for entry in self.shm_dir.glob("rrpa_*"))
        return sorted(name for name in names if not name.startswith("rrpa_table_"))

    def stop(self, sig: int = signal.SIGTERM, timeout_s: float = STOP_TIMEOUT_S) -> int:
        try:
            return super().stop(sig, timeout_s)
        finally:
            self.clean()

    def clean(self) -> None:
        """Remove the private directories."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._own_shm:
            shutil.rmtree(self._own_shm, ignore_errors=True)


class ReplayEngine(Process):
    """`rrpa engine replay`, attached to `daemon`."""

    def __init__(self, daemon: Daemon, *, env: dict[str, str] | None = None, **settings: Any):
        chosen = {"engine_socket": daemon.engine_socket, "shm_dir": daemon.shm_dir, **settings}
        argv = [sys.executable, "-m", "rrpa_sidecar", "engine", "replay", *flags(chosen)]
        super().__init__(argv, ready="rrpa engine ready", env=env)


class LlamaEngine(Process):
    """`rrpa engine llamacpp` with the packaged model, attached to `daemon`."""

    def __init__(self, daemon: Daemon, *, env: dict[str, str] | None = None, **settings: Any):
        chosen = {"engine_socket": daemon.engine_socket, "shm_dir": daemon.shm_dir, **settings}
        argv = [sys.executable, "-m", "rrpa_sidecar", "engine", "llamacpp", *flags(chosen)]
        super().__init__(argv, ready="rrpa engine ready", env=env)


class Stack:
    """A daemon, a replay engine (not with `engine=None`) and, on request, Envoy.

    Each argument is a dict of settings for that process.
    """

    def __init__(
        self,
        daemon: dict[str, Any] | None = None,
        engine: dict[str, Any] | None = {},  # noqa: B006 - read only
        envoy: dict[str, Any] | bool = False,
    ):
        self.daemon = Daemon(**(daemon or {}))
        self._engine_settings = engine
        self._envoy_settings = envoy
        self.engine: ReplayEngine | None = None
        self.envoy: Any = None
        self._open = contextlib.ExitStack()

    def start(self) -> Self:
        with contextlib.ExitStack() as opened:
            opened.callback(self.daemon.clean)
            opened.enter_context(self.daemon)
            if self._engine_settings is not None:
                self.engine = ReplayEngine(self.daemon, **self._engine_settings)
                opened.enter_context(self.engine)
            if self._envoy_settings is not False:
                from tests.harness.envoy import Envoy

                chosen = self._envoy_settings if isinstance(self._envoy_settings, dict) else {}
                self.envoy = opened.enter_context(Envoy(self.daemon, **chosen))
            self._open = opened.pop_all()
        return self

    def stop(self) -> None:
        self._open.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()


def eventually(condition: Any, timeout_s: float = 5.0, what: str = "") -> Any:
    """Return the first true value of `condition()`; fail after `timeout_s`.

    For states of other processes that can only be asked for.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not true within {timeout_s} s: {what or condition}: {value!r}")
        time.sleep(0.005)
