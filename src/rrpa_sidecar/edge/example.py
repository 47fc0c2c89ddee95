"""The config of a sidecar with default settings, as it stands in envoy/envoy.yaml.

python -m rrpa_sidecar.edge.example FILE    writes it anew
"""

from __future__ import annotations

import pathlib
import sys

from rrpa_sidecar.config import Config
from rrpa_sidecar.edge.bootstrap import Files, bootstrap
from rrpa_sidecar.edge.render import CERTIFICATE_NAME, DESCRIPTORS_NAME, KEY_NAME, to_yaml

DIRECTORY = "/etc/rrpa"
"""Where the example expects its other files."""


def example() -> str:
    """Return the example's text."""
    files = Files(
        descriptors=f"{DIRECTORY}/{DESCRIPTORS_NAME}",
        certificate=f"{DIRECTORY}/{CERTIFICATE_NAME}",
        key=f"{DIRECTORY}/{KEY_NAME}",
    )
    return to_yaml(bootstrap(Config(), files))


if __name__ == "__main__":
    pathlib.Path(sys.argv[1]).write_text(example(), encoding="utf-8")
