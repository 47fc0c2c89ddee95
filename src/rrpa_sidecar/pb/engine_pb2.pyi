from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttachRequest(_message.Message):
    __slots__ = ("hello", "rejected", "announce")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    rejected: Rejected
    announce: Announce
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., rejected: _Optional[_Union[Rejected, _Mapping]] = ..., announce: _Optional[_Union[Announce, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("engine_name", "models", "capacity", "build", "format_version", "table_id", "table_nonce", "shm_dir", "shm_device", "boot_id", "announced")
    ENGINE_NAME_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_NONCE_FIELD_NUMBER: _ClassVar[int]
    SHM_DIR_FIELD_NUMBER: _ClassVar[int]
    SHM_DEVICE_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCED_FIELD_NUMBER: _ClassVar[int]
    engine_name: str
    models: _containers.RepeatedScalarFieldContainer[str]
    capacity: int
    build: str
    format_version: int
    table_id: str
    table_nonce: bytes
    shm_dir: str
    shm_device: int
    boot_id: str
    announced: int
    def __init__(self, engine_name: _Optional[str] = ..., models: _Optional[_Iterable[str]] = ..., capacity: _Optional[int] = ..., build: _Optional[str] = ..., format_version: _Optional[int] = ..., table_id: _Optional[str] = ..., table_nonce: _Optional[bytes] = ..., shm_dir: _Optional[str] = ..., shm_device: _Optional[int] = ..., boot_id: _Optional[str] = ..., announced: _Optional[int] = ...) -> None: ...

class Announce(_message.Message):
    __slots__ = ("streams",)
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedCompositeFieldContainer[OpenStream]
    def __init__(self, streams: _Optional[_Iterable[_Union[OpenStream, _Mapping]]] = ...) -> None: ...

class OpenStream(_message.Message):
    __slots__ = ("stream_id", "model", "resumable", "begun", "request_id")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESUMABLE_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    stream_id: str
    model: str
    resumable: bool
    begun: bool
    request_id: str
    def __init__(self, stream_id: _Optional[str] = ..., model: _Optional[str] = ..., resumable: bool = ..., begun: bool = ..., request_id: _Optional[str] = ...) -> None: ...

class Rejected(_message.Message):
    __slots__ = ("stream_id", "code", "message")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    stream_id: str
    code: int
    message: str
    def __init__(self, stream_id: _Optional[str] = ..., code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("commands",)
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    commands: _containers.RepeatedCompositeFieldContainer[Command]
    def __init__(self, commands: _Optional[_Iterable[_Union[Command, _Mapping]]] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("welcome", "submit", "cancel", "release", "adopt", "draining")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    ADOPT_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    submit: Submit
    cancel: Cancel
    release: Release
    adopt: Adopt
    draining: Draining
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., submit: _Optional[_Union[Submit, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., adopt: _Optional[_Union[Adopt, _Mapping]] = ..., draining: _Optional[_Union[Draining, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("doorbell_path", "stream_bytes", "sidecar_version")
    DOORBELL_PATH_FIELD_NUMBER: _ClassVar[int]
    STREAM_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIDECAR_VERSION_FIELD_NUMBER: _ClassVar[int]
    doorbell_path: str
    stream_bytes: int
    sidecar_version: str
    def __init__(self, doorbell_path: _Optional[str] = ..., stream_bytes: _Optional[int] = ..., sidecar_version: _Optional[str] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("stream_id", "slot", "request", "request_id", "traceparent", "priority", "timeout_ms", "resumable")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    RESUMABLE_FIELD_NUMBER: _ClassVar[int]
    stream_id: str
    slot: int
    request: bytes
    request_id: str
    traceparent: str
    priority: int
    timeout_ms: int
    resumable: bool
    def __init__(self, stream_id: _Optional[str] = ..., slot: _Optional[int] = ..., request: _Optional[bytes] = ..., request_id: _Optional[str] = ..., traceparent: _Optional[str] = ..., priority: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., resumable: bool = ...) -> None: ...

class Adopt(_message.Message):
    __slots__ = ("stream_id", "slot")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    stream_id: str
    slot: int
    def __init__(self, stream_id: _Optional[str] = ..., slot: _Optional[int] = ...) -> None: ...

class Draining(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("stream_id",)
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    stream_id: str
    def __init__(self, stream_id: _Optional[str] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("stream_id",)
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    stream_id: str
    def __init__(self, stream_id: _Optional[str] = ...) -> None: ...
