"""A struct and its row: what goes in comes out again, in columns that SQL can compare."""

from datetime import UTC, datetime
from enum import StrEnum

from msgspec import Struct

from palyra.core.ids import RunId
from palyra.journal.row_mapping import RowMapping

AT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


class Colour(StrEnum):
    RED = "red"


class Part(Struct, frozen=True):
    name: str


class Thing(Struct, frozen=True, kw_only=True):
    run_id: RunId
    colour: Colour | None
    names: tuple[str, ...]
    part: Part
    is_ready: bool
    made_at: datetime
    ended_at: datetime | None = None
    at: datetime
    note: str = "only on the tape"


ROWS = RowMapping(Thing, "things", renamed={"at": "at_ms"}, without=("note",))
FULL = Thing(
    run_id=RunId("r"),
    colour=Colour.RED,
    names=("a", "b"),
    part=Part("p"),
    is_ready=True,
    made_at=AT,
    ended_at=AT,
    at=AT,
)
BARE = Thing(run_id=RunId("r"), colour=None, names=(), part=Part(""), is_ready=False, made_at=AT, at=AT)


def test_a_struct_is_read_back_as_it_was_written() -> None:
    for thing in (FULL, BARE):
        assert ROWS.as_stored(thing) == thing


def test_each_value_is_stored_as_a_number_or_a_text() -> None:
    at_ms = 1_767_323_045_678
    assert ROWS.write(FULL) == {
        "run_id": "r",
        "colour": "red",
        "names": "a,b",
        "part": '{"name":"p"}',
        "is_ready": 1,
        "made_ms": at_ms,
        "ended_ms": at_ms,
        "at_ms": at_ms,
    }
    assert (ROWS.write(BARE)["colour"], ROWS.write(BARE)["names"], ROWS.write(BARE)["ended_ms"]) == (None, "", None)


def test_a_query_and_an_insert_name_the_columns_in_the_order_of_the_fields() -> None:
    columns = "run_id, colour, names, part, is_ready, made_ms, ended_ms, at_ms"
    assert ROWS.select == f"SELECT {columns} FROM things"
    values = ", ".join(f":{name}" for name in columns.split(", "))
    assert ROWS.insert == f"INSERT INTO things ({columns}) VALUES ({values})"
