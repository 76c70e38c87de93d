import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Stop(_message.Message):
    __slots__ = ("stop_id", "principal", "by", "at", "reason")
    STOP_ID_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    stop_id: str
    principal: str
    by: str
    at: _timestamp_pb2.Timestamp
    reason: str
    def __init__(self, stop_id: _Optional[str] = ..., principal: _Optional[str] = ..., by: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class ListStopsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListStopsResponse(_message.Message):
    __slots__ = ("stops",)
    STOPS_FIELD_NUMBER: _ClassVar[int]
    stops: _containers.RepeatedCompositeFieldContainer[Stop]
    def __init__(self, stops: _Optional[_Iterable[_Union[Stop, _Mapping]]] = ...) -> None: ...

class StopOwnRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class StopAllRequest(_message.Message):
    __slots__ = ("principal", "reason")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    principal: str
    reason: str
    def __init__(self, principal: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class StopResponse(_message.Message):
    __slots__ = ("stop", "cancelled_runs")
    STOP_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_RUNS_FIELD_NUMBER: _ClassVar[int]
    stop: Stop
    cancelled_runs: int
    def __init__(self, stop: _Optional[_Union[Stop, _Mapping]] = ..., cancelled_runs: _Optional[int] = ...) -> None: ...

class ResumeOwnRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeAllRequest(_message.Message):
    __slots__ = ("principal", "remove_file")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FILE_FIELD_NUMBER: _ClassVar[int]
    principal: str
    remove_file: bool
    def __init__(self, principal: _Optional[str] = ..., remove_file: _Optional[bool] = ...) -> None: ...

class ResumeResponse(_message.Message):
    __slots__ = ("resumed", "stops")
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    STOPS_FIELD_NUMBER: _ClassVar[int]
    resumed: _containers.RepeatedCompositeFieldContainer[Stop]
    stops: _containers.RepeatedCompositeFieldContainer[Stop]
    def __init__(self, resumed: _Optional[_Iterable[_Union[Stop, _Mapping]]] = ..., stops: _Optional[_Iterable[_Union[Stop, _Mapping]]] = ...) -> None: ...
