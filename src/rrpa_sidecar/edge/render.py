"""The config as files: YAML that people can read, and what it names, in one directory."""

from __future__ import annotations

import os
import pathlib
from dataclasses import dataclass

import yaml

from rrpa_sidecar.config import Config
from rrpa_sidecar.config_kinds import split_address
from rrpa_sidecar.edge.bootstrap import Files, bootstrap
from rrpa_sidecar.edge.certificate import local_names, write_local_certificate
from rrpa_sidecar.edge.descriptors import descriptor_set
from rrpa_sidecar.edge.extensions import Tree

CONFIG_NAME = "envoy.yaml"
DESCRIPTORS_NAME = "rrpa.pb"
CERTIFICATE_NAME = "cert.pem"
KEY_NAME = "key.pem"

HEADER = (
    "# Made by `rrpa envoy-config` from the sidecar's settings; change those and run it again.\n"
    "# What each part is for: envoy/README.md, and the comments in rrpa_sidecar/edge.\n"
)


@dataclass(frozen=True, slots=True)
class Written:
    """Where the files are, and what the config says."""

    config: pathlib.Path
    descriptors: pathlib.Path
    certificate: pathlib.Path
    key: pathlib.Path
    made_certificate: bool
    tree: Tree


def write(config: Config, directory: pathlib.Path) -> Written:
    """Write envoy.yaml, the descriptor set and, unless one is given, a certificate.

    directory: made if absent. Existing files are replaced; a good certificate is kept.
    """
    directory.mkdir(parents=True, exist_ok=True)
    directory = directory.resolve()
    certificate, key = directory / CERTIFICATE_NAME, directory / KEY_NAME
    made = False
    if config.envoy_tls_cert:
        certificate, key = _absolute(config.envoy_tls_cert), _absolute(config.envoy_tls_key)
    else:
        host, _ = split_address(config.envoy_listen)
        made = write_local_certificate(certificate, key, local_names(host))
    descriptors = directory / DESCRIPTORS_NAME
    descriptors.write_bytes(descriptor_set())
    files = Files(
        descriptors=str(descriptors),
        certificate=str(certificate),
        key=str(key),
        client_ca=str(_absolute(config.envoy_client_ca)) if config.envoy_client_ca else "",
    )
    path = directory / CONFIG_NAME
    tree = bootstrap(config, files)
    path.write_text(to_yaml(tree), encoding="utf-8")
    return Written(path, descriptors, certificate, key, made, tree)


def to_yaml(tree: Tree) -> str:
    """Return `tree` as YAML with a heading; the same tree gives the same bytes."""
    text = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)
    return HEADER + text


def _absolute(path: str) -> pathlib.Path:
    return pathlib.Path(os.path.abspath(path))


class _Dumper(yaml.SafeDumper):
    """Plain YAML: no anchors, and texts of several lines as blocks."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
