"""Instructions and schemas for emulated tool calls: the tools in a few words, and the form of the answer.

Such models are small and so are their windows. The description of each tool is therefore short, and shorter the more
tools there are; tools that do not fit even then are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from palyra.core.json_schema import Visit, map_parts, transform
from palyra.core.model.prompt import estimate_tokens
from palyra.core.tool import JsonObject, Risk, ToolSpec

MAX_DEPTH = 6
"""Beyond this depth a model may write anything; the arguments are checked anyway before a tool is called."""
MAX_CHOICES = 50
DESCRIPTIONS = (160, 60, 0)
"""The lengths of descriptions that are tried, in characters, longest first."""

HOW = (
    "Write one JSON object and nothing else. To find something out or to do something, use a "
    'tool:\n{"tool": NAME, "arguments": {…}}\nIts result is the next message. You cannot read, change, '
    "fetch or know the time without a tool: never make up a tool's result. When you know enough, "
    'answer:\n{"answer": TEXT}\nThe tools, with ? after what may be left out:'
)
"""Tested with a model of 1.5 billion weights: with other wording, it made up more answers instead of using a tool."""
MUST = (
    "Use a tool now. Write one JSON object and nothing else:\n"
    '{"tool": NAME, "arguments": {…}}\n'
    "The tools, with ? after what may be left out:"
)

_RISKS = tuple(Risk)
_SIMPLE = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class ToolInstructions:
    """The instructions about tools for a model."""

    text: str
    tools: tuple[ToolSpec, ...]
    left_out: tuple[str, ...]
    """The names of the tools that did not fit."""


def describe_tools(
    tools: tuple[ToolSpec, ...], *, tokens: int, used: frozenset[str] = frozenset(), must: bool = False
) -> ToolInstructions:
    """Describe the tools in at most so many tokens.

    If there are too many, those that the conversation has `used` are kept, then those with the lowest risk, then those
    with the shortest descriptions.
    """
    how = MUST if must else HOW
    room = tokens - estimate_tokens(how)
    for characters in DESCRIPTIONS:
        lines = {tool.name: _line(tool, characters) for tool in tools}
        if sum(map(_cost, lines.values())) <= room:
            return ToolInstructions("\n".join((how, *lines.values())), tools, ())

    def basic(tool: ToolSpec) -> tuple[bool, int, int]:
        return tool.name not in used, _RISKS.index(tool.risk), len(lines[tool.name])

    stored: set[str] = set()
    for tool in sorted(tools, key=basic):
        cost = _cost(lines[tool.name])
        if cost <= room:
            room -= cost
            stored.add(tool.name)
    specs = tuple(tool for tool in tools if tool.name in stored)
    return ToolInstructions(
        "\n".join((how, *(lines[tool.name] for tool in specs))),
        specs,
        tuple(tool.name for tool in tools if tool.name not in stored),
    )


def output_schema(tools: tuple[ToolSpec, ...], *, answer: JsonObject | None) -> JsonObject:
    """Return the JSON Schema of the output: a call of one of the tools, or an answer if it is allowed.

    Properties are written in their order, so the tool is chosen before its arguments.
    """
    choices = [_object({"tool": {"const": tool.name}, "arguments": simplify_schema(tool.parameters)}) for tool in tools]
    if answer is not None:
        choices.append(_object({"answer": answer}))
    return {"anyOf": choices}


def simplify_schema(parameters: JsonObject) -> JsonObject:
    """Return the part of a tool's schema that every server can enforce: a wider one, which allows all that it does.

    A pattern, a bound or a reference that a server does not support would make it reject the whole request.
    """
    return _plain_object(
        parameters, lambda part, via="": transform(part, _simplified, max_depth=MAX_DEPTH - 1, beyond={})
    )


def _simplified(schema: Any, visit: Visit) -> JsonObject:
    if not isinstance(schema, dict):
        return {}
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return {"enum": values} if 0 < len(values) <= MAX_CHOICES else {}
    kind = schema.get("type")
    kinds = [{**schema, "type": one} for one in kind] if isinstance(kind, list) else None
    for choices in (schema.get("anyOf"), schema.get("oneOf"), kinds):
        if isinstance(choices, list):
            return {"anyOf": [visit(choice) for choice in choices]} if 0 < len(choices) <= MAX_CHOICES else {}
    if kind == "object" or (kind is None and "properties" in schema):
        plain = _plain_object(schema, visit)
        is_closed = plain["properties"] or schema.get("additionalProperties") is False
        return plain if is_closed else {"type": "object"}
    if kind == "array":
        return {"type": "array", "items": visit(schema.get("items"))}
    return {"type": kind} if kind in _SIMPLE else {}


def _plain_object(schema: JsonObject, visit: Visit) -> JsonObject:
    properties = map_parts(schema, visit, ("properties",)).get("properties", {})
    required = schema.get("required")
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if isinstance(required, list) and name in required],
        "additionalProperties": False,
    }


def _object(properties: JsonObject) -> JsonObject:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _cost(line: str) -> int:
    return estimate_tokens(line + "\n")


def _line(tool: ToolSpec, characters: int) -> str:
    described = _shortened(tool.description, characters)
    return f"- {tool.name}({', '.join(_arguments(tool.parameters))}){': ' if described else ''}{described}"


def _arguments(schema: JsonObject) -> Iterator[str]:
    properties, required = schema.get("properties"), schema.get("required")
    for name, part in properties.items() if isinstance(properties, dict) else ():
        needed = isinstance(required, list) and name in required
        kind = _kind(part)
        yield f"{name}{'' if needed else '?'}{': ' if kind else ''}{kind}"


def _kind(schema: Any) -> str:
    """Return the type of a value in the fewest words; empty for a text, which most are."""
    if not isinstance(schema, dict):
        return ""
    values = schema.get("enum")
    if isinstance(values, list) and 0 < len(values) <= 8:
        return "|".join(_encode(value).decode() for value in values)
    kind = schema.get("type")
    return kind if isinstance(kind, str) and kind != "string" else ""


def _shortened(text: str, characters: int) -> str:
    """Return the first sentence, or as much of it as fits."""
    sentence = " ".join(text.split()).partition(". ")[0].rstrip(".")
    if len(sentence) <= characters:
        return sentence
    return sentence[:characters].rpartition(" ")[0] + "…" if characters else ""
