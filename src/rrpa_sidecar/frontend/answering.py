"""What every front end does alike: requests taken apart, errors as statuses."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from rrpa_sidecar.control.broker import Broker, Labels, Reading
from rrpa_sidecar.errors import InvalidRequest, RRPAError
from rrpa_sidecar.pb import rrpa_pb2 as pb
from rrpa_sidecar.status import Code, status_of

log = logging.getLogger(__name__)


Opening = Callable[[bytes, Labels, float | None], Reading]
"""(request, labels, seconds that the caller still waits) → its place in a stream."""

M = TypeVar("M", bound=Message)


def resume(broker: Broker, request: bytes, labels: Labels, timeout_s: float | None) -> Reading:
    """Begin ResumeStream or ResumeMessage; what `Broker.resume` raises, too. An `Opening`.

    timeout_s: means nothing here: a stream that is there is not waited for.
    """
    asked = _parsed(pb.ResumeStreamRequest, request)
    return broker.resume(asked.stream_id, asked.offset, labels)


def cancel_stream(broker: Broker, request: bytes) -> bytes:
    """Answer CancelStream; what `Broker.cancel_stream` raises, too."""
    broker.cancel_stream(_parsed(pb.CancelStreamRequest, request).stream_id)
    return pb.CancelStreamResponse().SerializeToString()


def list_models(broker: Broker, request: bytes) -> bytes:
    """Answer ListModels; InvalidRequest if `request` is none."""
    _parsed(pb.ListModelsRequest, request)
    models = [
        pb.Model(name=each.name, engines=each.engines, capacity=each.capacity, active=each.active)
        for each in broker.models()
    ]
    return pb.ListModelsResponse(models=models).SerializeToString()


def _parsed(kind: type[M], request: bytes) -> M:
    try:
        return kind.FromString(request)
    except DecodeError as error:
        raise InvalidRequest(f"the request is not a {kind.DESCRIPTOR.full_name}") from error


def told(error: Exception, labels: Labels | None = None) -> tuple[Code, str]:
    """Return the status for `error` by the one table; log what callers must not see."""
    code, text = status_of(error)
    if not isinstance(error, RRPAError):
        log.error("call failed request_id=%s", labels.request_id if labels else "", exc_info=error)
    elif len(str(error)) > len(text):
        log.warning("error text was cut for the caller: %s", error)
    return code, text
