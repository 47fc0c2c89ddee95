"""The ways in which a caller reaches the product: one row each.

A new front end adds a row to `ROWS`; every test of this folder then runs against it too.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import grpc
from google.protobuf import json_format

from rrpa_sidecar.pb import rrpa_pb2, rrpa_pb2_grpc
from tests.harness.processes import Stack

Request = rrpa_pb2.CreateStreamRequest
TIMEOUT_S = 60.0
AT_ONCE = 32


@dataclasses.dataclass
class Answer:
    """What a caller got, whole."""

    data: bytes = b""
    complete: bool = False
    """The caller can tell that nothing is missing: status OK, or a clean end of the body."""
    code: str = "OK"
    """The gRPC code's name; over HTTP, the number of the status line."""
    text: str = ""
    """The sentence of a failure."""
    frames: list[Any] = dataclasses.field(default_factory=list)
    """CreateStreamResponse messages; empty over HTTP."""
    headers: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    trailers: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    @property
    def finish(self) -> rrpa_pb2.Finish | None:
        return (
            self.frames[-1].finish if self.frames and self.frames[-1].HasField("finish") else None
        )


class Caller(Protocol):
    """A way in."""

    name: str
    grpc: bool

    def ask(self, request: Request, metadata: Sequence[tuple[str, str]] = ()) -> Answer:
        """Make one call and wait for its end."""
        ...

    def resume(
        self, stream_id: str, offset: int = 0, metadata: Sequence[tuple[str, str]] = ()
    ) -> Answer:
        """Go on with a stream at an offset, and wait for its end."""
        ...

    def ask_all(
        self,
        requests: Sequence[Request],
        metadata: Sequence[tuple[str, str]] = (),
        at_once: int = AT_ONCE,
    ) -> list[Answer]:
        """Make many calls, `at_once` at a time; answers in the order of the requests."""
        ...

    def close(self) -> None: ...


class GrpcCaller:
    """CreateStream over a gRPC channel."""

    grpc = True

    def __init__(self, name: str, target: str, ca: str = ""):
        self.name = name
        self.target = target
        self.ca = ca
        self.channel = self.connect()
        self.stub = rrpa_pb2_grpc.RRPAServiceStub(self.channel)

    def connect(self, **options: int) -> grpc.Channel:
        """Return a channel of its own connection: `connect(**{"grpc.keepalive_time_ms": 1})`."""
        chosen = [("grpc.use_local_subchannel_pool", 1), *options.items()]
        if not self.ca:
            return grpc.insecure_channel(self.target, chosen)
        roots = grpc.ssl_channel_credentials(pathlib.Path(self.ca).read_bytes())
        return grpc.secure_channel(self.target, roots, chosen)

    def ask(self, request: Request, metadata: Sequence[tuple[str, str]] = ()) -> Answer:
        return collect(self.stub.CreateStream(request, timeout=TIMEOUT_S, metadata=metadata))

    def resume(
        self, stream_id: str, offset: int = 0, metadata: Sequence[tuple[str, str]] = ()
    ) -> Answer:
        asked = rrpa_pb2.ResumeStreamRequest(stream_id=stream_id, offset=offset)
        return collect(self.stub.ResumeStream(asked, timeout=TIMEOUT_S, metadata=metadata))

    def ask_all(
        self,
        requests: Sequence[Request],
        metadata: Sequence[tuple[str, str]] = (),
        at_once: int = AT_ONCE,
    ) -> list[Answer]:
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda request: self.ask(request, metadata), requests))

    def close(self) -> None:
        self.channel.close()


def collect(call: Any) -> Answer:
    """Read a CreateStream call to its end."""
    answer = Answer()
    try:
        for frame in call:
            answer.frames.append(frame)
            answer.data += frame.data
        answer.complete = True
    except grpc.RpcError:
        pass
    answer.code = call.code().name
    answer.text = call.details() or ""
    answer.headers = _listed(call.initial_metadata())
    answer.trailers = _listed(call.trailing_metadata())
    return answer


def _listed(metadata: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, value in metadata or ():
        found.setdefault(key, []).append(value)
    return found


class HttpCaller:
    """POST /v2/messages and GET /v2/streams/… with curl, through Envoy, over TLS and HTTP/2."""

    grpc = False

    def __init__(self, name: str, url: str, ca: str):
        self.name = name
        self.url = url
        self.ca = ca

    def argv(self, request: Request | None, metadata: Sequence[tuple[str, str]] = ()) -> list[str]:
        """The command a person would type; without `request` the body comes from stdin."""
        body = "@-" if request is None else as_json(request)
        metadata = [("content-type", "application/json"), *metadata]
        return [*self._curl(metadata), "--data-binary", body, self.url]

    def _curl(self, metadata: Sequence[tuple[str, str]]) -> list[str]:
        argv = ["curl", "--silent", "--show-error", "--no-buffer", "--http2"]
        argv += ["--cacert", self.ca, "--max-time", str(TIMEOUT_S)]
        for key, value in metadata:
            argv += ["--header", f"{key}: {value}" if value else f"{key};"]
        return argv

    def ask(self, request: Request, metadata: Sequence[tuple[str, str]] = ()) -> Answer:
        return self._run(self.argv(None, metadata), as_json(request).encode())

    def resume(
        self, stream_id: str, offset: int = 0, metadata: Sequence[tuple[str, str]] = ()
    ) -> Answer:
        streams = self.url.replace("/v2/messages", "/v2/streams")
        query = f"?offset={offset}" if offset else ""
        return self._run([*self._curl(metadata), f"{streams}/{stream_id}{query}"])

    def _run(self, argv: list[str], body: bytes = b"") -> Answer:
        with tempfile.NamedTemporaryFile(prefix="rrpa-headers-") as headers:
            done = subprocess.run(
                [*argv, "--dump-header", headers.name],
                input=body,
                capture_output=True,
                check=False,
            )
            return self._answer(
                done.stdout, pathlib.Path(headers.name).read_text("latin-1"), done.returncode
            )

    def ask_all(
        self,
        requests: Sequence[Request],
        metadata: Sequence[tuple[str, str]] = (),
        at_once: int = AT_ONCE,
    ) -> list[Answer]:
        """One curl process makes all calls."""
        folder = pathlib.Path(tempfile.mkdtemp(prefix="rrpa-"))
        try:
            blocks = []
            for n, request in enumerate(requests):
                (folder / f"{n}.json").write_text(as_json(request))
                extra = "".join(f'header = "{key}: {value}"\n' for key, value in metadata)
                blocks.append(
                    f'url = "{self.url}"\nhttp2\nno-buffer\ncacert = "{self.ca}"\n'
                    f'header = "content-type: application/json"\n{extra}'
                    f'data-binary = "@{folder / f"{n}.json"}"\n'
                    f'output = "{folder / f"{n}.body"}"\n'
                    f'dump-header = "{folder / f"{n}.head"}"\n'
                )
            (folder / "all").write_text("next\n".join(blocks))
            argv = ["curl", "--silent", "--show-error", "--parallel"]
            argv += ["--parallel-max", str(at_once), "--config", str(folder / "all")]
            done = subprocess.run(argv, capture_output=True, check=False, timeout=100)
            answers = []
            for n in range(len(requests)):
                body = folder / f"{n}.body"
                head = (folder / f"{n}.head").read_text("latin-1")
                data = body.read_bytes() if body.exists() else b""
                answers.append(self._answer(data, head, done.returncode))
            return answers
        finally:
            shutil.rmtree(folder)

    @staticmethod
    def _answer(body: bytes, head: str, curl_says: int) -> Answer:
        # curl dumps the trailers behind the headers, after an empty line.
        before, _, behind = head.replace("\r", "").partition("\n\n")
        status = before.split()[1] if before else ""
        headers, trailers = _fields(before), _fields(behind)
        ok = status == "200"
        return Answer(
            data=body if ok else b"",
            complete=ok and curl_says == 0,
            code="OK" if ok and curl_says == 0 else status or f"curl {curl_says}",
            text="" if ok else body.decode("utf-8", "replace"),
            headers=headers,
            trailers=trailers,
        )

    def close(self) -> None:
        pass


def _fields(head: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in head.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            found.setdefault(key.lower(), []).append(value.strip())
    return found


def as_json(request: Request) -> str:
    """The body of POST /v2/messages for `request`."""
    return json.dumps(
        json_format.MessageToDict(request, preserving_proto_field_name=True), ensure_ascii=True
    )


def _tcp(stack: Stack) -> Caller:
    return GrpcCaller("grpcio, TCP", stack.daemon.grpc_address)


def _unix(stack: Stack) -> Caller:
    return GrpcCaller("Unix", f"unix:{stack.daemon.envoy_socket}")


def _envoy(stack: Stack) -> Caller:
    return GrpcCaller("Envoy", stack.envoy.address, stack.envoy.ca)


def _http(stack: Stack) -> Caller:
    return HttpCaller("HTTP, Envoy", stack.envoy.url("/v2/messages"), stack.envoy.ca)


# name → how to reach it in a running stack.
ROWS: dict[str, Callable[[Stack], Caller]] = {
    "grpcio-tcp": _tcp,
    "grpc-unix": _unix,
    "grpc-envoy": _envoy,
    "http-envoy": _http,
}
GRPC_ROWS = [name for name in ROWS if not name.startswith("http")]
