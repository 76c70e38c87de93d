"""The OpenAPI document, from the table of operations and their request and response types."""

import inspect
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from palyra.core.version import VERSION
from palyra.gateway.http.messages import ProblemDocument
from palyra.gateway.http.operation import EVENTS, LazyType, Operation, Parameter

_PARAMETER = re.compile(r"{(\w+)}")
_PATH = re.compile(r":path}")
"""How a route marks a parameter that may contain slashes, which OpenAPI cannot express."""

_ERRORS = {
    400: "The request is not valid.",
    401: "The token is missing or not valid.",
    403: "The token does not allow this.",
    404: "It does not exist, or it belongs to another principal.",
    409: "The request contradicts the current state.",
    413: "The request is too large.",
    429: "There are too many requests, streams or waiting messages.",
    503: "The daemon cannot do this now.",
}


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """Return the document that describes the operations."""
    spoken = ((one.body, one.answer, one.failure, one.unready, *one.streams) for one in operations)
    kinds = {_loaded(kind) for some in spoken for kind in some if kind is not None}
    listed = sorted({*kinds, ProblemDocument}, key=lambda kind: kind.__name__)
    schemas, components = msgspec.json.schema_components(listed, ref_template="#/components/schemas/{name}")
    by_kind = dict(zip(listed, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(_address(operation), {})[operation.method.lower()] = _described(operation, by_kind)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Palyra", "version": VERSION, "description": "A self-hosted agent daemon."},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(operation: Operation, by_kind: dict[type, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [_tag(operation)],
        "summary": operation.about,
        "security": [] if operation.need is None else [{"token": [operation.need]}],
        "parameters": [*map(_path_parameter, _names(operation)), *map(_parameter, operation.query)],
        "responses": _responses(operation, by_kind),
    }
    if operation.body is not None:
        body = _loaded(operation.body)
        described["requestBody"] = {
            "required": any(field.required for field in msgspec.structs.fields(body)),
            "content": {"application/json": {"schema": by_kind[body]}},
        }
    return described


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": parameter.kind}
    if parameter.kind == "integer":
        schema["minimum"] = 0 if parameter.maximum is None else 1
    if parameter.maximum is not None:
        schema["maximum"] = parameter.maximum
    if parameter.choices:
        schema["enum"] = list(parameter.choices)
    if parameter.default is not None:
        schema["default"] = parameter.default
    return {
        "name": parameter.name,
        "in": parameter.location,
        "required": parameter.required,
        "description": parameter.about,
        "schema": schema,
    }


def _responses(operation: Operation, by_kind: dict[type, Any]) -> dict[str, Any]:
    responses = {str(operation.status): _answer(operation, by_kind)}
    if operation.empty:
        responses["204"] = {"description": "No content."}
    if operation.unready is not None:
        content = {"application/json": {"schema": by_kind[operation.unready]}}
        responses["503"] = {"description": _summary(operation.unready), "content": content}
    if operation.need is None:
        return responses
    failure = _failure(operation, by_kind)
    for status in _statuses(operation):
        responses[str(status)] = {"description": _ERRORS[status], "content": failure}
    return {**responses, "default": {"description": "The request failed.", "content": failure}}


def _statuses(operation: Operation) -> list[int]:
    """Return the statuses of the errors that a caller should expect."""
    changed = [409] if operation.method != "GET" else []
    sent = [413] if operation.body is not None else []
    return [400, 401, 403, 404, *changed, *sent, 429, 503]


def _answer(operation: Operation, by_kind: dict[type, Any]) -> dict[str, Any]:
    answer = _loaded(operation.answer) if operation.answer is not None else None
    if operation.status == 204:
        return {"description": "It was done. There is nothing to return."}
    events = [by_kind[_loaded(kind)] for kind in operation.streams]
    if operation.media == EVENTS and answer is not None:
        events, description = [by_kind[answer]], "Server-sent events."
        content = {}
    else:
        description = _summary(answer)
        content = {
            media: {"schema": by_kind[answer] if answer is not None else _untyped(media)} for media in operation.media
        }
    if events:
        content["text/event-stream"] = {"schema": _event_stream(events)}
    described: dict[str, Any] = {"description": description, "content": content}
    if operation.headers:
        described["headers"] = {
            name: {"description": about, "schema": {"type": "string"}} for name, about in operation.headers
        }
    return described


def _event_stream(data: list[Any]) -> dict[str, Any]:
    """Return the schema of server-sent events. OpenAPI 3.1 describes a stream as the text that it is; the content
    keywords of JSON Schema describe what the text consists of."""
    event = {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "event": {"type": "string"},
            "data": {
                "type": "string",
                "contentMediaType": "application/json",
                "contentSchema": data[0] if len(data) == 1 else {"anyOf": data},
            },
        },
        "required": ["data"],
    }
    return {
        "type": "string",
        "contentMediaType": "text/event-stream",
        "contentSchema": {"type": "array", "items": event},
    }


def _untyped(media: str) -> dict[str, Any]:
    return {"type": "object" if media == "application/json" else "string"}


def _failure(operation: Operation, by_kind: dict[type, Any]) -> dict[str, Any]:
    if operation.failure is not None:
        return {"application/json": {"schema": by_kind[_loaded(operation.failure)]}}
    return {"application/problem+json": {"schema": by_kind[ProblemDocument]}}


def _summary(kind: type | None) -> str:
    """Return the first line of a type's description."""
    return (inspect.getdoc(kind) or "").partition("\n")[0] if kind is not None else "The document."


def _loaded(kind: type | LazyType) -> type:
    return kind.load() if isinstance(kind, LazyType) else kind


def _tag(operation: Operation) -> str:
    """Return the API that an operation belongs to."""
    root = operation.path.split("/")[1]
    return root if root in ("console", "admin", "v1") else "daemon"


def _names(operation: Operation) -> list[str]:
    return _PARAMETER.findall(_address(operation))


def _address(operation: Operation) -> str:
    return _PATH.sub("}", operation.path)
