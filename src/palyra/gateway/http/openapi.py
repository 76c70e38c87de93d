"""The OpenAPI document, from the table of operations and their request and response types."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from palyra.core.version import VERSION
from palyra.gateway.http.messages import ProblemDocument
from palyra.gateway.http.operation import LazyType, Operation

_PARAMETER = re.compile(r"{(\w+)}")
_PATH = re.compile(r":path}")
"""How a route marks a parameter that may hold slashes, which OpenAPI cannot express."""


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """Return the document that describes the operations."""
    spoken = ((operation.body, operation.answer, operation.failure) for operation in operations)
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
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(operation: Operation, by_kind: dict[type, Any]) -> dict[str, Any]:
    place = _PARAMETER.sub("", _address(operation)).replace("/", "_").rstrip("_")
    said: dict[str, Any] = {
        "operationId": f"{operation.method.lower()}{place}",
        "summary": operation.about,
        "x-palyra-scope": operation.need,
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in _names(operation)
            ),
            *(
                {"name": query.name, "in": "query", "description": query.about, "schema": {"type": query.kind}}
                for query in operation.query
            ),
        ],
        "responses": {
            str(operation.status): _answer(operation, by_kind),
            "default": {"description": "An error.", "content": _failure(operation, by_kind)},
        },
    }
    if operation.empty:
        said["responses"]["204"] = {"description": "There is nothing."}
    if operation.body is not None:
        said["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": by_kind[_loaded(operation.body)]}},
        }
    return said


def _answer(operation: Operation, by_kind: dict[type, Any]) -> dict[str, Any]:
    if operation.answer is None and operation.media == "application/json":
        return {"description": "Done."}
    schema = by_kind[_loaded(operation.answer)] if operation.answer is not None else {"type": "string"}
    content = {operation.media: {"schema": schema}}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {"description": "As asked.", "content": content}


def _failure(operation: Operation, by_kind: dict[type, Any]) -> dict[str, Any]:
    if operation.failure is not None:
        return {"application/json": {"schema": by_kind[_loaded(operation.failure)]}}
    return {"application/problem+json": {"schema": by_kind[ProblemDocument]}}


def _loaded(kind: type | LazyType) -> type:
    return kind.load() if isinstance(kind, LazyType) else kind


def _names(operation: Operation) -> list[str]:
    return _PARAMETER.findall(_address(operation))


def _address(operation: Operation) -> str:
    return _PATH.sub("}", operation.path)
