"""Judges an engine's Hello: is it well formed, and does it see our shared memory?"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rrpa_sidecar.control.requests import is_model_name, shortened
from rrpa_sidecar.errors import AttachRefused, CorruptLog, InvalidRequest, SegmentMissing
from rrpa_sidecar.pb.engine_pb2 import Hello
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import DirectoryIdentity, SegmentDirectory
from rrpa_sidecar.shm.table import TableReader
from rrpa_sidecar.status import MESSAGE_LIMIT_BYTES, one_line

MODELS_LIMIT = 64
BUILD_LIMIT_BYTES = 256
DIR_LIMIT_BYTES = 4096  # PATH_MAX
_ENGINE_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class Offer:
    """What an engine offers, checked."""

    name: str
    models: tuple[str, ...]
    capacity: int
    build: str
    table_id: str
    table: TableReader


def check_hello(hello: Hello, directory: SegmentDirectory) -> Offer:
    """Return the engine's offer with its table open.

    Raises:
      InvalidRequest: a field is not what engine.proto asks for.
      AttachRefused: another format, another machine, or other shared memory.
      CapacityExhausted: the sidecar has too many files open.
    """
    _check_fields(hello)
    if hello.format_version != layout.VERSION:
        raise AttachRefused(
            f"engine {hello.engine_name} writes shared-memory format {hello.format_version}, the"
            f" sidecar reads {layout.VERSION}; install the same rrpa-sidecar version on both sides"
        )
    return Offer(
        name=hello.engine_name,
        models=tuple(sorted(set(hello.models))),
        capacity=hello.capacity,
        build=hello.build,
        table_id=hello.table_id,
        table=_open_table(hello, directory),
    )


def _check_fields(hello: Hello) -> None:
    faults = {
        "engine_name must be 1 to 64 characters of [A-Za-z0-9._-], not "
        + shortened(hello.engine_name): not _ENGINE_NAME.fullmatch(hello.engine_name),
        f"models must be 1 to {MODELS_LIMIT} names, not {len(hello.models)}": not (
            1 <= len(hello.models) <= MODELS_LIMIT
        ),
        "each model must be a name of 1 to 128 printable ASCII characters": not all(
            map(is_model_name, hello.models)
        ),
        f"capacity must be 1 to {layout.MAX_SLOTS}, not {hello.capacity}": not (
            1 <= hello.capacity <= layout.MAX_SLOTS
        ),
        f"build must be at most {BUILD_LIMIT_BYTES} bytes": len(hello.build.encode())
        > BUILD_LIMIT_BYTES,
        "table_id must be 32 lower-case hex digits": not layout.is_id(hello.table_id),
        f"table_nonce must be {layout.NONCE_BYTES} bytes, not {len(hello.table_nonce)}": len(
            hello.table_nonce
        )
        != layout.NONCE_BYTES,
        "shm_dir must be the path of the engine's directory": not (
            1 <= len(hello.shm_dir.encode()) <= DIR_LIMIT_BYTES
        ),
    }
    for sentence, is_wrong in faults.items():
        if is_wrong:
            raise InvalidRequest(f"Hello: {sentence}")


def _open_table(hello: Hello, directory: SegmentDirectory) -> TableReader:
    """Find the engine's table in our own directory: only that shows that both see the same.

    Device numbers cannot show it: one volume may have two in two containers, and two may be equal.
    """
    ours = directory.identity()
    if hello.boot_id and ours.boot_id and hello.boot_id != ours.boot_id:
        raise AttachRefused(
            f"engine runs on another machine: boot id {shortened(hello.boot_id)}, sidecar"
            f" {ours.boot_id}; shared memory reaches one machine only"
        )
    try:
        return TableReader.open(
            directory, hello.table_id, slots=hello.capacity, nonce=hello.table_nonce
        )
    except SegmentMissing as exc:
        raise AttachRefused(_not_ours(hello, ours)) from exc
    except CorruptLog as exc:
        raise AttachRefused(
            f"engine's table does not suit: {exc}; let both use one volume and one group"
        ) from exc


def _not_ours(hello: Hello, ours: DirectoryIdentity) -> str:
    def sentence(engine_dir: str, sidecar_dir: str) -> str:
        return (
            f"engine's shared memory is not the sidecar's: engine uses {engine_dir} (device"
            f" {hello.shm_device}), sidecar {sidecar_dir} (device {ours.st_dev}), table"
            f" {hello.table_id[:4]}… not found there; mount the same volume into both"
        )

    # The paths give way, so that the remedy at the end is never cut off.
    room = (MESSAGE_LIMIT_BYTES - len(sentence("", "").encode())) // 2
    return sentence(one_line(hello.shm_dir, room), one_line(ours.path, room))
