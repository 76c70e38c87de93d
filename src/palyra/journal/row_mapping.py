"""Maps structs to rows of a table: each field to a column of its own, in the order of the fields.

A time is stored in milliseconds: its column ends in `_ms` where the field ends in `_at`. A flag is stored as a number,
an enum as its value, names with commas between them, and any other structure as JSON. None is NULL.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from types import NoneType
from typing import Any, Generic, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Struct

from palyra.core.clock import from_ms, to_ms
from palyra.journal.engines.base import Row

S = TypeVar("S", bound=Struct)

Columns = dict[str, object]

_encode = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    column: str
    read: Callable[[Any], object] | None
    """How its value is read from the column and written to it; None for a value that is stored as it is."""
    write: Callable[[Any], object] | None


class RowMapping(Generic[S]):
    """The rows of one table as structs of one kind."""

    def __init__(
        self, kind: type[S], table: str, *, renamed: Mapping[str, str] | None = None, without: Collection[str] = ()
    ) -> None:
        """`renamed` gives columns that have another name than their field; fields in `without` have no column."""
        unknown = {*without, *(renamed or {})} - {*kind.__struct_fields__}
        assert not unknown, f"{kind.__name__} has no fields {unknown}"
        hints = get_type_hints(kind)
        self._kind = kind
        self._fields = [
            _Field(name, (renamed or {}).get(name) or _column(name), *_conversion(hints[name]))
            for name in kind.__struct_fields__
            if name not in without
        ]
        names = [field.column for field in self._fields]
        self.select = f"SELECT {', '.join(names)} FROM {table}"
        """The beginning of a query whose rows `read` takes."""
        self.insert = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)})"

    def read(self, row: Row) -> S:
        """Return the struct of a row."""
        return self._kind(
            **{
                field.name: value if value is None or field.read is None else field.read(value)
                for field, value in zip(self._fields, row, strict=True)
            }
        )

    def write(self, value: S) -> Columns:
        """Return the row of a struct."""
        return {field.column: _written(getattr(value, field.name), field.write) for field in self._fields}

    def as_stored(self, value: S) -> S:
        """Return a struct as it would be read back from its row."""
        return self.read(tuple(self.write(value).values()))


def _column(name: str) -> str:
    return f"{name.removesuffix('_at')}_ms" if name.endswith("_at") else name


def _written(value: Any, write: Callable[[Any], object] | None) -> object:
    return value if value is None or write is None else write(value)


def _conversion(hint: Any) -> tuple[Callable[[Any], object] | None, Callable[[Any], object] | None]:
    kinds = [part for part in get_args(hint) if part is not NoneType] if NoneType in get_args(hint) else [hint]
    kind = getattr(kinds[0], "__supertype__", kinds[0])
    if kind in (str, int, float):
        return None, None
    if kind is datetime:
        return from_ms, to_ms
    if kind is bool:
        return bool, int
    if kind == tuple[str, ...]:
        return _split, ",".join
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind, lambda value: value.value
    return msgspec.json.Decoder(kind).decode, lambda value: _encode.encode(value).decode()


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()
