"""A stand-in sidecar behind the real Envoy, and the callers that people use: curl, grpcio."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import Any

import grpc

from rrpa_sidecar.pb import rrpa_pb2
from tests.harness.envoy import Envoy
from tests.harness.processes import Process

FAKE = pathlib.Path(__file__).parent / "fake_sidecar.py"
CURL_FAILED_STREAM = 92
"""curl's exit code for an HTTP/2 stream that did not end cleanly."""


class FakeSidecar(Process):
    """fake_sidecar.py on a socket of its own. It has the `settings` that Envoy is made from."""

    def __init__(self, *, health: str = "SERVING", script: pathlib.Path = FAKE, **settings: Any):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir="/tmp", prefix="rrpa-"))
        self.socket = self.folder / "envoy.sock"
        self.settings = {"envoy_socket": self.socket, **settings}
        argv = [sys.executable, str(script), str(self.socket)]
        super().__init__(argv, ready="ready", env={"FAKE_HEALTH": health})

    def stop(self, *args: Any, **kwargs: Any) -> int:
        try:
            return super().stop(*args, **kwargs)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


class Edge(Envoy):
    """Envoy in front of a FakeSidecar."""

    def __init__(self, sidecar: FakeSidecar, **settings: Any):
        super().__init__(sidecar, **settings)  # type: ignore[arg-type]

    def curl(self, *arguments: str, path: str = "/v2/messages") -> Reply:
        """Run curl, HTTP/2 by its own choice, and return what it got."""
        head = pathlib.Path(tempfile.mkdtemp(dir="/tmp", prefix="rrpa-"))
        try:
            argv = ["curl", "-sS", "-N", "-m", "20", "--cacert", self.ca, "-D", f"{head}/head"]
            argv += [self.url(path), *arguments]
            done = subprocess.run(argv, capture_output=True, check=False)
            lines = (head / "head").read_text("latin-1").splitlines()
        finally:
            shutil.rmtree(head)
        return Reply(done.returncode, done.stdout.decode(), lines, done.stderr.decode())

    def post(self, message: dict[str, Any] | str, *arguments: str) -> Reply:
        """POST a message (or a text that shall be none) to /v2/messages."""
        body = message if isinstance(message, str) else json.dumps(message)
        return self.curl("-d", body, *arguments)

    def seen(self, *headers: str) -> dict[str, list[str]]:
        """Return the metadata that reached the sidecar for a call with these headers."""
        arguments = [part for each in headers for part in ("-H", each)]
        reply = self.post({"model": "seen"}, *arguments)
        assert reply.status == 200, reply
        found: dict[str, list[str]] = {}
        for key, value in json.loads(reply.body):
            found.setdefault(key, []).append(value)
        return found

    def channel(self, **options: Any) -> grpc.Channel:
        secret = grpc.ssl_channel_credentials(pathlib.Path(self.ca).read_bytes())
        return grpc.secure_channel(self.address, secret, options=list(options.items()))


@dataclasses.dataclass
class Reply:
    """What curl got. `exit_code` 0: it saw a clean end."""

    exit_code: int
    body: str
    head: list[str]
    complaint: str

    @property
    def status(self) -> int:
        """The last status line's number; 0 if there was none."""
        found = [line.split()[1] for line in self.head if line.startswith("HTTP/")]
        return int(found[-1]) if found else 0

    def header(self, name: str) -> list[str]:
        """All values of a header or trailer."""
        pairs = (line.partition(":") for line in self.head)
        return [value.strip() for key, _, value in pairs if key.lower() == name]


def message(model: str, **fields: Any) -> rrpa_pb2.CreateStreamRequest:
    return rrpa_pb2.CreateStreamRequest(model=model, **fields)
