"""Tools for models that were never taught to call any: told in a few words, and chosen by an answer of a given form.

Such models are small and so are their windows. What is told of each tool is therefore short, and shorter the more tools
there are; what does not fit even then is left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from palyra.core.prompt import estimate_tokens
from palyra.core.tool import JsonObject, Risk, ToolSpec

DEEPEST = 6
"""Beyond it a model may write what it likes; the arguments are checked anyway before a tool is called."""
MOST_CHOICES = 50
DESCRIPTIONS = (160, 60, 0)
"""How many characters of a description are told, from the most to the least."""

HOW = (
    "Write one JSON object and nothing else. To find something out or to do something, use a tool:\n"
    '{"tool": NAME, "arguments": {…}}\n'
    "Its result is the next message. You can not read, change, fetch or know the time without a tool: never make up"
    " what one would tell. When you know enough, answer:\n"
    '{"answer": TEXT}\n'
    "The tools, with ? after what may be left out:"
)
"""Tried with a model of 1.5 billion weights: told in other words, it made up more answers instead of using a tool."""
MUST = (
    "Use a tool now. Write one JSON object and nothing else:\n"
    '{"tool": NAME, "arguments": {…}}\n'
    "The tools, with ? after what may be left out:"
)

_RISKS = tuple(Risk)
_SIMPLE = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Told:
    """What a model is told of its tools."""

    text: str
    tools: tuple[ToolSpec, ...]
    left_out: tuple[str, ...]
    """The names of those for which there was no room."""


def tell(tools: tuple[ToolSpec, ...], *, tokens: int, used: frozenset[str] = frozenset(), must: bool = False) -> Told:
    """Put the tools into at most so many tokens.

    If there are too many, those stay that the conversation has `used`, then those that can do the least harm, then
    those that are told in the fewest words.
    """
    how = MUST if must else HOW
    room = tokens - estimate_tokens(how)
    for characters in DESCRIPTIONS:
        lines = {tool.name: _line(tool, characters) for tool in tools}
        if sum(map(_cost, lines.values())) <= room:
            return Told("\n".join((how, *lines.values())), tools, ())

    def basic(tool: ToolSpec) -> tuple[bool, int, int]:
        return tool.name not in used, _RISKS.index(tool.risk), len(lines[tool.name])

    kept: set[str] = set()
    for tool in sorted(tools, key=basic):
        cost = _cost(lines[tool.name])
        if cost <= room:
            room -= cost
            kept.add(tool.name)
    told = tuple(tool for tool in tools if tool.name in kept)
    return Told(
        "\n".join((how, *(lines[tool.name] for tool in told))),
        told,
        tuple(tool.name for tool in tools if tool.name not in kept),
    )


def form(tools: tuple[ToolSpec, ...], *, answer: JsonObject | None) -> JsonObject:
    """Return the JSON Schema of what the model may write: a call of one of the tools, or an answer if there may be one.

    What is named first is written first, so the tool is chosen before its arguments.
    """
    choices = [
        _object({"tool": {"const": tool.name}, "arguments": plain(tool.parameters, is_object=True)}) for tool in tools
    ]
    if answer is not None:
        choices.append(_object({"answer": answer}))
    return {"anyOf": choices}


def plain(schema: Any, depth: int = 0, *, is_object: bool = False) -> JsonObject:
    """Return as much of a schema as every server can hold a model to: a wider one, that allows all that the first does.

    A pattern, a bound or a reference that a server does not understand would make it refuse the whole question.
    """
    if not isinstance(schema, dict) or depth > DEEPEST:
        return {"type": "object"} if is_object else {}
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return {"enum": values} if 0 < len(values) <= MOST_CHOICES else {}
    for name in ("anyOf", "oneOf"):
        choices = schema.get(name)
        if isinstance(choices, list) and not is_object:
            return (
                {"anyOf": [plain(choice, depth + 1) for choice in choices]} if 0 < len(choices) <= MOST_CHOICES else {}
            )
    kind = schema.get("type")
    if isinstance(kind, list):
        return {"anyOf": [plain({**schema, "type": one}, depth + 1) for one in kind]} if kind else {}
    if kind == "object" or is_object or (kind is None and "properties" in schema):
        return _plain_object(schema, depth)
    if kind == "array":
        return {"type": "array", "items": plain(schema.get("items"), depth + 1)}
    return {"type": kind} if kind in _SIMPLE else {}


def _plain_object(schema: JsonObject, depth: int) -> JsonObject:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        properties = {}
    if not properties and schema.get("additionalProperties") is not False and depth:
        return {"type": "object"}
    required = schema.get("required")
    return {
        "type": "object",
        "properties": {name: plain(part, depth + 1) for name, part in properties.items()},
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
    """Return what a value is, in the fewest words; nothing for a text, which most are."""
    if not isinstance(schema, dict):
        return ""
    values = schema.get("enum")
    if isinstance(values, list) and 0 < len(values) <= 8:
        return "|".join(_encode(value).decode() for value in values)
    kind = schema.get("type")
    return kind if isinstance(kind, str) and kind != "string" else ""


def _shortened(text: str, characters: int) -> str:
    """Return the first sentence, or as much of it as there is room for."""
    sentence = " ".join(text.split()).partition(". ")[0].rstrip(".")
    if len(sentence) <= characters:
        return sentence
    return sentence[:characters].rpartition(" ")[0] + "…" if characters else ""
