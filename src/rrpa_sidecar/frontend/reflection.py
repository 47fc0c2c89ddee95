"""Server reflection, so that grpcurl works without a proto file (v1alpha, which all tools know).

Answers alone, since grpcio-reflection's servicers are gRPC's and both front ends reflect.

Source: grpc/reflection/v1alpha/reflection.proto.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection_pb2 as pb

from rrpa_sidecar.errors import InvalidRequest
from rrpa_sidecar.frontend.methods import METHODS, REFLECTION
from rrpa_sidecar.status import Code

POOL = descriptor_pool.Default()


def reflect(raw: bytes) -> bytes:
    """Answer one ServerReflectionRequest; InvalidRequest if `raw` is none."""
    try:
        request = pb.ServerReflectionRequest.FromString(raw)
    except DecodeError:
        raise InvalidRequest(f"the request is not one of {REFLECTION}") from None
    reply = pb.ServerReflectionResponse(original_request=request)
    try:
        _fill(reply, request)
    except KeyError:
        reply.error_response.error_code = Code.NOT_FOUND
        reply.error_response.error_message = "not found here"
    answer: bytes = reply.SerializeToString()
    return answer


def _fill(reply: Any, request: Any) -> None:
    """Put into `reply` what `request` asks for; KeyError if there is no such thing."""
    kind = request.WhichOneof("message_request")
    if kind == "list_services":
        names = sorted([*METHODS, REFLECTION])
        reply.list_services_response.service.extend(pb.ServiceResponse(name=n) for n in names)
    elif kind == "file_by_filename":
        _add_file(reply, POOL.FindFileByName(request.file_by_filename))
    elif kind == "file_containing_symbol":
        _add_file(reply, POOL.FindFileContainingSymbol(request.file_containing_symbol))
    elif kind == "file_containing_extension":
        asked = request.file_containing_extension
        message = POOL.FindMessageTypeByName(asked.containing_type)
        extension = POOL.FindExtensionByNumber(message, asked.extension_number)
        _add_file(reply, POOL.FindFileContainingSymbol(extension.full_name))
    elif kind == "all_extension_numbers_of_type":
        message = POOL.FindMessageTypeByName(request.all_extension_numbers_of_type)
        found = reply.all_extension_numbers_response
        found.base_type_name = message.full_name
        found.extension_number.extend(sorted(e.number for e in POOL.FindAllExtensions(message)))
    else:
        reply.error_response.error_code = Code.INVALID_ARGUMENT
        reply.error_response.error_message = "the request asks for nothing"


def _add_file(reply: Any, file: Any) -> None:
    """Add a file and all that it imports, each once."""
    todo, seen = [file], set()
    while todo:
        each = todo.pop()
        if each.name not in seen:
            seen.add(each.name)
            reply.file_descriptor_response.file_descriptor_proto.append(each.serialized_pb)
            todo.extend(each.dependencies)
