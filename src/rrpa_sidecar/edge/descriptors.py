"""What Envoy has to know of the protocol, taken from the generated modules at run time.

There is no second copy of the protos that could go stale: the descriptor set that the
transcoder reads is the one that this installation's own messages are made of.
"""

from __future__ import annotations

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor

from rrpa_sidecar.pb import rrpa_pb2

SERVICE: str = rrpa_pb2.DESCRIPTOR.services_by_name["RRPAService"].full_name
"""The gRPC service; also the name that the health check asks for, so the two cannot differ."""


def descriptor_set() -> bytes:
    """Return the service's FileDescriptorSet with all imports (google.api too), serialized.

    Files come before those that import them, as Envoy wants them.
    """
    files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    _collect(rrpa_pb2.DESCRIPTOR, files)
    return descriptor_pb2.FileDescriptorSet(file=files.values()).SerializeToString(
        deterministic=True
    )


def _collect(file: FileDescriptor, files: dict[str, descriptor_pb2.FileDescriptorProto]) -> None:
    if file.name in files:
        return
    for dependency in file.dependencies:
        _collect(dependency, files)
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    files[file.name] = proto
