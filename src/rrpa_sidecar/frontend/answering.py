"""What every front end does alike: requests taken apart, errors as statuses."""

from __future__ import annotations

import logging

from google.protobuf.message import DecodeError

from rrpa_sidecar.control.broker import Broker, Labels, Reading
from rrpa_sidecar.errors import InvalidRequest, RRPAError
from rrpa_sidecar.pb import rrpa_pb2 as pb
from rrpa_sidecar.status import Code, status_of

log = logging.getLogger(__name__)


def resume(broker: Broker, request: bytes, labels: Labels) -> Reading:
    """Begin ResumeStream or ResumeMessage; what `Broker.resume` raises, too."""
    try:
        asked = pb.ResumeStreamRequest.FromString(request)
    except DecodeError as error:
        raise InvalidRequest("the request is not a rrpa.v1.ResumeStreamRequest") from error
    return broker.resume(asked.stream_id, asked.offset, labels)


def cancel_stream(broker: Broker, request: bytes) -> bytes:
    """Answer CancelStream; what `Broker.cancel_stream` raises, too."""
    try:
        asked = pb.CancelStreamRequest.FromString(request)
    except DecodeError as error:
        raise InvalidRequest("the request is not a rrpa.v1.CancelStreamRequest") from error
    broker.cancel_stream(asked.stream_id)
    return pb.CancelStreamResponse().SerializeToString()


def list_models(broker: Broker, request: bytes) -> bytes:
    """Answer ListModels; InvalidRequest if `request` is none."""
    try:
        pb.ListModelsRequest.FromString(request)
    except DecodeError as error:
        raise InvalidRequest("the request is not a rrpa.v1.ListModelsRequest") from error
    models = [
        pb.Model(name=each.name, engines=each.engines, capacity=each.capacity, active=each.active)
        for each in broker.models()
    ]
    return pb.ListModelsResponse(models=models).SerializeToString()


def told(error: Exception, labels: Labels | None = None) -> tuple[Code, str]:
    """Return the status for `error` by the one table; log what callers must not see."""
    code, text = status_of(error)
    if not isinstance(error, RRPAError):
        log.error("call failed request_id=%s", labels.request_id if labels else "", exc_info=error)
    elif len(str(error)) > len(text):
        log.warning("error text was cut for the caller: %s", error)
    return code, text
