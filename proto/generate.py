"""Generate the Python stubs in src/rrpa_sidecar/pb from proto/.

usage: python proto/generate.py [OUTPUT_DIR]

Run it with the floor of the declared grpcio and protobuf ranges (`make proto` does): generated
code needs a runtime at least as new as its generator, so newer tools would raise the floor for
every user. tests/packaging compares its output with what is committed.
"""

from __future__ import annotations

import pathlib
import re
import sys
import tempfile

import google.api
from grpc_tools import protoc

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROTOS = sorted((ROOT / "proto/rrpa/v1").glob("*.proto"))
# google/api/*.proto lie beside the modules that googleapis-common-protos generated from them.
GOOGLEAPIS = pathlib.Path(next(iter(google.api.__path__))).parent.parent


def generate(output: pathlib.Path) -> None:
    """Write the stubs of every proto into `output`, flat, importing each other from there."""
    with tempfile.TemporaryDirectory() as scratch:
        status = protoc.main(
            [
                "protoc",
                f"-I{ROOT / 'proto'}",
                f"-I{GOOGLEAPIS}",
                f"-I{pathlib.Path(protoc.__file__).parent / '_proto'}",
                f"--python_out={scratch}",
                f"--pyi_out={scratch}",
                f"--grpc_python_out={scratch}",
                *map(str, PROTOS),
            ]
        )
        if status:
            raise SystemExit(status)
        output.mkdir(parents=True, exist_ok=True)
        for made in sorted(pathlib.Path(scratch, "rrpa/v1").iterdir()):
            # protoc imports by proto package; `rrpa` must not become a top-level package of ours.
            text = re.sub(
                r"^from rrpa\.v1 import",
                "from rrpa_sidecar.pb import",
                made.read_text(),
                flags=re.M,
            )
            (output / made.name).write_text(text)


if __name__ == "__main__":
    generate(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "src/rrpa_sidecar/pb")
