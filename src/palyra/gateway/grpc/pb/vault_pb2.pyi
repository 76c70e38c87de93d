import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SecretScope(_message.Message):
    __slots__ = ("hosts", "header", "format", "agents", "tools")
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    hosts: _containers.RepeatedScalarFieldContainer[str]
    header: str
    format: str
    agents: _containers.RepeatedScalarFieldContainer[str]
    tools: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, hosts: _Optional[_Iterable[str]] = ..., header: _Optional[str] = ..., format: _Optional[str] = ..., agents: _Optional[_Iterable[str]] = ..., tools: _Optional[_Iterable[str]] = ...) -> None: ...

class Secret(_message.Message):
    __slots__ = ("name", "principal", "version", "scope", "created_at", "updated_at", "last_used_at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_USED_AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    principal: str
    version: int
    scope: SecretScope
    created_at: _timestamp_pb2.Timestamp
    updated_at: _timestamp_pb2.Timestamp
    last_used_at: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., principal: _Optional[str] = ..., version: _Optional[int] = ..., scope: _Optional[_Union[SecretScope, _Mapping]] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., updated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_used_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class SetSecretRequest(_message.Message):
    __slots__ = ("name", "value", "scope")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: bytes
    scope: SecretScope
    def __init__(self, name: _Optional[str] = ..., value: _Optional[bytes] = ..., scope: _Optional[_Union[SecretScope, _Mapping]] = ...) -> None: ...

class SetSecretResponse(_message.Message):
    __slots__ = ("secret",)
    SECRET_FIELD_NUMBER: _ClassVar[int]
    secret: Secret
    def __init__(self, secret: _Optional[_Union[Secret, _Mapping]] = ...) -> None: ...

class ListSecretsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSecretsResponse(_message.Message):
    __slots__ = ("secrets",)
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    secrets: _containers.RepeatedCompositeFieldContainer[Secret]
    def __init__(self, secrets: _Optional[_Iterable[_Union[Secret, _Mapping]]] = ...) -> None: ...

class DeleteSecretRequest(_message.Message):
    __slots__ = ("secret_name",)
    SECRET_NAME_FIELD_NUMBER: _ClassVar[int]
    secret_name: str
    def __init__(self, secret_name: _Optional[str] = ...) -> None: ...

class DeleteSecretResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Sealed(_message.Message):
    __slots__ = ("sealed_id", "origins", "created_at")
    SEALED_ID_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    sealed_id: str
    origins: _containers.RepeatedScalarFieldContainer[str]
    created_at: _timestamp_pb2.Timestamp
    def __init__(self, sealed_id: _Optional[str] = ..., origins: _Optional[_Iterable[str]] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListSealedRequest(_message.Message):
    __slots__ = ("limit", "cursor")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    limit: int
    cursor: str
    def __init__(self, limit: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListSealedResponse(_message.Message):
    __slots__ = ("sealed", "next_cursor")
    SEALED_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    sealed: _containers.RepeatedCompositeFieldContainer[Sealed]
    next_cursor: str
    def __init__(self, sealed: _Optional[_Iterable[_Union[Sealed, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class RevealSealedRequest(_message.Message):
    __slots__ = ("sealed_id",)
    SEALED_ID_FIELD_NUMBER: _ClassVar[int]
    sealed_id: str
    def __init__(self, sealed_id: _Optional[str] = ...) -> None: ...

class RevealSealedResponse(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: str
    def __init__(self, value: _Optional[str] = ...) -> None: ...

class DeleteSealedRequest(_message.Message):
    __slots__ = ("sealed_id",)
    SEALED_ID_FIELD_NUMBER: _ClassVar[int]
    sealed_id: str
    def __init__(self, sealed_id: _Optional[str] = ...) -> None: ...

class DeleteSealedResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
