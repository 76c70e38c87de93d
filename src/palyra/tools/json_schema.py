"""Checks tool arguments against a JSON Schema written by others: those of plugins and of MCP servers.

The parts of JSON Schema that tools use are checked here: types, properties, required ones, enumerations, bounds, items,
alternatives and local references. `pattern`, `format` and the rest are shown to the model and not checked: a regular
expression from outside could block the daemon forever, and the author of the schema checks the input anyway. A
reference to another document is refused, since nothing is fetched to understand a schema.
"""

import difflib
from collections.abc import Callable
from typing import Any, TypeGuard

import msgspec

from palyra.core.errors import Invalid
from palyra.core.json_schema import Path, SchemaTooLarge, resolve, walk
from palyra.core.tool import JsonObject

MAX_BYTES = 64 * 1024
MAX_SCHEMAS = 2000
"""In one document, counting each schema within another."""
MAX_DEPTH = 40
MAX_STEPS = 20_000
"""For one check: alternatives within alternatives multiply."""
MAX_NAMED = 8
MAX_PROBLEM_CHARS = 200

_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list | tuple),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "number": lambda value: _is_number(value),
}
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "$defs", "definitions")
_CHECKED = frozenset({*_LISTS, *_NAMED, "items", "additionalProperties", "additionalItems", "not"})


class ToolSchemaInvalid(Invalid):
    """The JSON Schema of a tool is not valid."""


class ValidArguments(msgspec.Struct, frozen=True):
    """Arguments that fit a schema."""

    values: JsonObject


class ArgumentSchema:
    """A JSON Schema of arguments. It is validated once, so that a check against it never fails in itself."""

    def __init__(self, document: JsonObject) -> None:
        """Raise `ToolSchemaInvalid` if the document is not a schema, or one that cannot be checked safely."""
        self.document = document
        _check_document(document)

    def read(self, arguments: JsonObject) -> ValidArguments:
        """Return the arguments; raise `msgspec.ValidationError` if they do not fit, `UnicodeError` for invalid text.

        Numbers and booleans written as text are converted to the type in the schema.
        """
        values = _SchemaCheck(self.document).read(self.document, arguments, ())
        if not isinstance(values, dict):
            raise msgspec.ValidationError("Expected `object`")
        msgspec.json.encode(values)
        return ValidArguments(values)


class _SchemaCheck:
    """One check of one value."""

    def __init__(self, document: JsonObject) -> None:
        self._document = document
        self._steps = 0
        self._depth = 0

    def read(self, schema: JsonObject | bool, value: Any, at: Path) -> Any:
        """Return the value in the schema's type, or raise what is wrong with it."""
        self._steps += 1
        if self._steps > MAX_STEPS or self._depth > MAX_DEPTH * 2:
            raise _wrong("It is nested too deeply or too large to be checked", at)
        if isinstance(schema, bool):
            if not schema:
                raise _wrong("Nothing is allowed here", at)
            return value
        self._depth += 1
        try:
            return self._by_schema(schema, value, at)
        finally:
            self._depth -= 1

    def _by_schema(self, schema: JsonObject, value: Any, at: Path) -> Any:
        if "$ref" in schema:
            value = self.read(_referred(self._document, schema["$ref"]), value, at)
        value = _typed(schema, value, at)
        _check_value(schema, value, at)
        if isinstance(value, dict):
            value = self._object(schema, value, at)
        elif isinstance(value, list | tuple):
            value = self._array(schema, value, at)
        return self._alternatives(schema, value, at)

    def _object(self, schema: JsonObject, value: JsonObject, at: Path) -> JsonObject:
        properties = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                raise _wrong(f"Object missing required field `{name}`", at)
        others = schema.get("additionalProperties", True)
        # A pattern of names is not checked, so everything it might allow is let through.
        others = True if schema.get("patternProperties") else others
        read: JsonObject = {}
        for name, part in value.items():
            if name in properties:
                read[name] = self.read(properties[name], part, (*at, name))
            elif others is False:
                raise _wrong(f"Object contains unknown field `{_short(name)}`{_nearest(name, properties)}", at)
            else:
                read[name] = self.read(others, part, (*at, name))
        return read

    def _array(self, schema: JsonObject, value: Any, at: Path) -> list[Any]:
        items = schema.get("items", True)
        first, rest = schema.get("prefixItems", []), items
        if isinstance(items, list):
            first, rest = items, schema.get("additionalItems", True)
        read = [
            self.read(first[index] if index < len(first) else rest, part, (*at, index))
            for index, part in enumerate(value)
        ]
        if schema.get("uniqueItems") is True and len({_canonical(part) for part in read}) < len(read):
            raise _wrong("Expected unique items", at)
        return read

    def _alternatives(self, schema: JsonObject, value: Any, at: Path) -> Any:
        for part in schema.get("allOf", ()):
            value = self.read(part, value, at)
        for kind in ("anyOf", "oneOf"):
            if kind not in schema:
                continue
            fits, faults = [], []
            for part in schema[kind]:
                try:
                    fits.append(self.read(part, value, at))
                except msgspec.ValidationError as error:
                    faults.append(str(error)[:MAX_PROBLEM_CHARS])
                if fits and kind == "anyOf":
                    break
            if not fits:
                raise _wrong(f"It matches none of {len(faults)} alternatives ({'; '.join(_once(faults)[:3])})", at)
            if len(fits) > 1:
                raise _wrong(f"It matches {len(fits)} alternatives, and must match exactly one", at)
            value = fits[0]
        if "not" in schema and self._fits(schema["not"], value, at):
            raise _wrong("It matches what the schema excludes", at)
        return value

    def _fits(self, schema: JsonObject | bool, value: Any, at: Path) -> bool:
        try:
            self.read(schema, value, at)
        except msgspec.ValidationError:
            # Out of steps: the result is unknown, and unknown does not pass.
            return self._steps > MAX_STEPS
        return True


def _typed(schema: JsonObject, value: Any, at: Path) -> Any:
    requested = schema.get("type")
    if requested is None:
        return value
    names = [requested] if isinstance(requested, str) else requested
    if any(_TYPES[name](value) for name in names):
        return int(value) if isinstance(value, float) and "integer" in names and "number" not in names else value
    if isinstance(value, str):
        for name in names:
            if (meant := _meant(name, value)) is not None:
                return meant
    raise _wrong(f"Expected `{' | '.join(names)}`, got `{_type_of(value)}`", at)


def _meant(name: str, text: str) -> int | float | bool | None:
    """Return the number or boolean that a text stands for."""
    kind: type[int | float | bool] | None = {"integer": int, "number": float, "boolean": bool}.get(name)
    if kind is None or len(text) > MAX_NAMED * 8:
        return None
    if kind is float and (full := _meant("integer", text)) is not None:
        return full
    try:
        result = msgspec.convert(text, kind, strict=False)
    except (msgspec.ValidationError, UnicodeError):
        return None
    return None if isinstance(result, float) and result - result != 0 else result


def _check_value(schema: JsonObject, value: Any, at: Path) -> None:
    if "const" in schema and not _same(schema["const"], value):
        raise _wrong(f"Expected {_short_json(schema['const'])}", at)
    if "enum" in schema and not any(_same(one, value) for one in schema["enum"]):
        known_name = ", ".join(_short_json(one) for one in schema["enum"][:MAX_NAMED])
        more = ", …" if len(schema["enum"]) > MAX_NAMED else ""
        raise _wrong(f"Expected one of {known_name}{more}", at)
    if isinstance(value, str | list | tuple | dict):
        _check_size(schema, value, at)
    elif _is_number(value):
        _check_number(schema, value, at)


def _check_size(schema: JsonObject, value: "str | list[Any] | tuple[Any, ...] | JsonObject", at: Path) -> None:
    what, kind = ("characters", "Length") if isinstance(value, str) else ("items", "Items")
    if isinstance(value, dict):
        what, kind = "fields", "Properties"
    if len(value) < schema.get(f"min{kind}", 0):
        raise _wrong(f"Expected at least {schema[f'min{kind}']} {what}, got {len(value)}", at)
    if len(value) > schema.get(f"max{kind}", len(value)):
        raise _wrong(f"Expected at most {schema[f'max{kind}']} {what}, got {len(value)}", at)


def _check_number(schema: JsonObject, value: int | float, at: Path) -> None:
    # Drafts before the sixth wrote true beside `minimum` instead of a bound.
    low, high = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if "minimum" in schema and (value < schema["minimum"] or (low is True and value == schema["minimum"])):
        raise _wrong(f"Expected {'>' if low is True else '>='} {schema['minimum']}", at)
    if "maximum" in schema and (value > schema["maximum"] or (high is True and value == schema["maximum"])):
        raise _wrong(f"Expected {'<' if high is True else '<='} {schema['maximum']}", at)
    if _is_number(low) and value <= low:
        raise _wrong(f"Expected > {low}", at)
    if _is_number(high) and value >= high:
        raise _wrong(f"Expected < {high}", at)
    step = schema.get("multipleOf")
    if step is not None and not _is_multiple(value, step):
        raise _wrong(f"Expected a multiple of {step}", at)


def _is_multiple(value: int | float, step: int | float) -> bool:
    if isinstance(value, int) and isinstance(step, int):
        return value % step == 0
    try:
        parts = value / step
    except OverflowError:
        return False
    return abs(parts - round(parts)) < 1e-9 if abs(parts) < 1e300 else False


def _check_document(document: object) -> None:
    """Refuse a document that is not a schema; iteratively, since its depth is not known yet."""
    if not isinstance(document, dict) or document.get("type", "object") != "object":
        raise ToolSchemaInvalid('The schema of the arguments must be an object, with "type": "object".')
    try:
        size = len(msgspec.json.encode(document))
    except (RecursionError, TypeError, UnicodeError) as error:
        raise ToolSchemaInvalid(f"The schema is not JSON: {error}.") from error
    if size > MAX_BYTES:
        raise ToolSchemaInvalid(f"The schema has {size} bytes; the maximum is {MAX_BYTES}.")
    try:
        for at, schema in walk(document, _CHECKED, follow=True, max_depth=MAX_DEPTH, max_parts=MAX_SCHEMAS):
            if not isinstance(schema, dict):
                raise ToolSchemaInvalid(f"{_json_path(at)} must be a schema: an object, true or false.")
            _check_keywords(document, schema, at)
    except SchemaTooLarge:
        raise ToolSchemaInvalid("The schema is nested too deeply or has too many parts.") from None


def _check_keywords(document: JsonObject, schema: JsonObject, at: Path) -> None:
    names = schema.get("type")
    if names is not None:
        listed = names if isinstance(names, list) else [names]
        if not listed or not all(isinstance(name, str) and name in _TYPES for name in listed):
            raise ToolSchemaInvalid(
                f"{_json_path(at)} has the type {_short_json(names)}, which JSON Schema does not define."
            )
    if "enum" in schema and not (isinstance(schema["enum"], list) and schema["enum"]):
        raise ToolSchemaInvalid(f"{_json_path(at)}: enum must be a list of values.")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise ToolSchemaInvalid(f"{_json_path(at)}: required must be a list of names.")
    for name in _COUNTS:
        if name in schema and not (type(schema[name]) is int and schema[name] >= 0):
            raise ToolSchemaInvalid(f"{_json_path(at)}: {name} must be a number that is not negative.")
    for name in ("minimum", "maximum", "multipleOf"):
        if name in schema and not _is_number(schema[name]):
            raise ToolSchemaInvalid(f"{_json_path(at)}: {name} must be a number.")
    if schema.get("multipleOf", 1) <= 0:
        raise ToolSchemaInvalid(f"{_json_path(at)}: multipleOf must be greater than 0.")
    for name in _NAMED:
        if name in schema and not isinstance(schema[name], dict):
            raise ToolSchemaInvalid(f"{_json_path(at)}: {name} must be an object of schemas.")
    for name in _LISTS:
        if name in schema and not (isinstance(schema[name], list) and schema[name]):
            raise ToolSchemaInvalid(f"{_json_path(at)}: {name} must be a list of schemas.")
    if "$ref" in schema:
        _referred(document, schema["$ref"])


def _referred(document: JsonObject, reference: object) -> JsonObject | bool:
    """Return the schema that a reference points to, within the document."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise ToolSchemaInvalid(
            f"The schema refers to {_short_json(reference)}: only references within it, #/…, are followed."
        )
    result = resolve(document, reference)
    if result is None:
        raise ToolSchemaInvalid(f"The schema refers to {_short_json(reference)}, which is not in it.")
    if not isinstance(result, dict | bool):
        raise ToolSchemaInvalid(f"The schema refers to {_short_json(reference)}, which is not a schema.")
    return result


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(one: object, other: object) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _canonical(value: object) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def _type_of(value: object) -> str:
    return next((name for name, fits in _TYPES.items() if fits(value)), type(value).__name__)


def _wrong(what: str, at: Path) -> msgspec.ValidationError:
    return msgspec.ValidationError(f"{what} - at `{_json_path(at)}`" if at else what)


def _json_path(at: Path) -> str:
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{_short(step)}" for step in at)


def _nearest(name: str, document: JsonObject) -> str:
    near = difflib.get_close_matches(name[:60], list(document), n=1)
    return f"; did you mean `{near[0]}`?" if near else ""


def _short_json(value: object) -> str:
    return _short(msgspec.json.encode(value).decode(errors="replace"))


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:60] + "…"


def _once(texts: list[str]) -> list[str]:
    return list(dict.fromkeys(texts))
