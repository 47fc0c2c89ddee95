"""What an engine says about itself, checked before the sidecar sees it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rrpa_sidecar.pb import engine_pb2
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import SegmentDirectory
from rrpa_sidecar.shm.doorbell import path_fault

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
MAX_MODELS = 64
MAX_MODEL_NAME = 128
MAX_BUILD_BYTES = 256


@dataclass(frozen=True, slots=True)
class Identity:
    """The parts of Hello that stay the same when the engine attaches again."""

    name: str
    models: tuple[str, ...]
    capacity: int
    build: str

    def hello(
        self, directory: SegmentDirectory, table_id: str, nonce: bytes, announced: int
    ) -> engine_pb2.AttachRequest:
        """Return the first message of an attachment whose table is `table_id`.

        announced: streams of earlier attachments that are said next.
        """
        where = directory.identity()
        return engine_pb2.AttachRequest(
            hello=engine_pb2.Hello(
                engine_name=self.name,
                models=self.models,
                capacity=self.capacity,
                build=self.build,
                format_version=layout.VERSION,
                table_id=table_id,
                table_nonce=nonce,
                shm_dir=where.path,
                shm_device=where.st_dev,
                boot_id=where.boot_id,
                announced=announced,
            )
        )


def checked_identity(name: str, models: Sequence[str], capacity: int, build: str) -> Identity:
    """Return the identity, or raise ValueError with the rule that was broken."""
    if isinstance(models, str):
        raise ValueError(f"models is a list of names, not one string: [{models!r}]")
    if not NAME.fullmatch(name):
        raise ValueError(f"engine name {name[:80]!r} is not 1 to 64 characters of A-Za-z0-9._-")
    if not 1 <= len(models) <= MAX_MODELS:
        raise ValueError(f"an engine serves 1 to {MAX_MODELS} models, not {len(models)}")
    for model in models:
        if not (model.isascii() and model.isprintable() and 1 <= len(model) <= MAX_MODEL_NAME):
            raise ValueError(
                f"model name {model[:80]!r} is not 1 to {MAX_MODEL_NAME} printable ASCII characters"
            )
    if len(set(models)) != len(models):
        raise ValueError("a model name is given twice; give each once")
    if not 1 <= capacity <= layout.MAX_SLOTS:
        raise ValueError(f"capacity {capacity} is not 1 to {layout.MAX_SLOTS} streams")
    if len(build.encode()) > MAX_BUILD_BYTES:
        raise ValueError(f"build text is {len(build.encode())} bytes, {MAX_BUILD_BYTES} allowed")
    return Identity(name, tuple(models), capacity, build)


def check_socket_path(path: str) -> None:
    """Raise ValueError when no Unix socket can have this path."""
    if fault := path_fault(path):
        raise ValueError(fault)
