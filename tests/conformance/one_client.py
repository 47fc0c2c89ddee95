"""A caller in its own process, to be killed.

usage: python -m tests.conformance.one_client TARGET CA_FILE REQUEST_HEX

CA_FILE is `-` where TARGET takes no TLS. Prints `accepted` and `first token` as they happen.
"""

from __future__ import annotations

import pathlib
import sys

import grpc

from rrpa_sidecar.pb import rrpa_pb2_grpc
from tests.conformance.callers import Request


def main(target: str, ca_file: str, request_hex: str) -> None:
    if ca_file == "-":
        channel = grpc.insecure_channel(target)
    else:
        roots = grpc.ssl_channel_credentials(pathlib.Path(ca_file).read_bytes())
        channel = grpc.secure_channel(target, roots)
    stub = rrpa_pb2_grpc.RRPAServiceStub(channel)
    call = stub.CreateStream(Request.FromString(bytes.fromhex(request_hex)), timeout=60)
    call.initial_metadata()
    print("accepted", flush=True)
    for frame in call:
        if frame.data:
            print("first token", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
