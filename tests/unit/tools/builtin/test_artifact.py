"""A result that is too long is kept whole, and read on in slices."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.core.artifact import MAX_KEPT_BYTES
from palyra.core.attestation import FullResult
from palyra.core.errors import OffsetBeyondEnd, PalyraError
from palyra.core.tool import MAX_RESULT_BYTES, CallOutcome, Risk
from palyra.journal.engines.base import StorageFull
from palyra.sandbox.files.workspace import Workspace
from palyra.tools.base import ToolContext, tool
from palyra.tools.builtin import artifact
from palyra.tools.catalog import ToolCatalog
from palyra.tools.execution import ToolResult, execute
from tests.unit.tools.shelf import KEPT_ID, Shelf
from tests.unit.tools.surroundings import StillClock, a_call


@tool(name="test.say", risk=Risk.LOW)
async def say(context: ToolContext, *, text: str, times: int = 1) -> str:
    """Say something."""
    return text * times


CATALOG = ToolCatalog((say, artifact.read))


async def act(shelf: Shelf, name: str, **arguments: object) -> ToolResult:
    context = ToolContext(workspace=Workspace((Path("/nonexistent"),)), clock=StillClock(), storage=shelf)
    finished = await execute(a_call(name, dict(arguments)), catalog=CATALOG, context=context, timeout_ms=60_000)
    assert isinstance(finished, ToolResult)
    return finished


async def test_a_short_result_is_not_kept() -> None:
    shelf = Shelf()
    assert await act(shelf, "test.say", text="ü", times=MAX_RESULT_BYTES // 2) == ToolResult(
        CallOutcome.OK, "ü" * (MAX_RESULT_BYTES // 2)
    )
    assert not shelf.spilt


async def test_a_long_result_says_where_the_whole_of_it_is() -> None:
    shelf = Shelf()
    finished = await act(shelf, "test.say", text="0123456789", times=5000)
    assert finished.artifact == KEPT_ID
    assert shelf.spilt == [b"0123456789" * 5000]
    assert len(finished.text.encode()) <= MAX_RESULT_BYTES
    assert f"read the whole of 50000 bytes with artifact.read, artifact={KEPT_ID} …]" in finished.text


async def test_of_a_huge_result_the_first_part_is_kept() -> None:
    shelf = Shelf()
    finished = await act(shelf, "test.say", text="x", times=MAX_KEPT_BYTES + 5)
    assert len(shelf.spilt[0]) == MAX_KEPT_BYTES
    assert f"read the first 8 MiB of {MAX_KEPT_BYTES + 5} bytes" in finished.text


async def test_a_result_that_can_not_be_kept_is_given_in_part() -> None:
    class Full(Shelf):
        async def spill(self, data: bytes) -> FullResult:
            raise StorageFull

    finished = await act(Full(), "test.say", text="x", times=50_000)
    assert (finished.outcome, finished.artifact) == (CallOutcome.OK, None)
    assert "bytes left out …]" in finished.text


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=200), st.integers(4, 40))
async def test_slices_put_together_are_the_whole(text: str, length: int) -> None:
    data = text.encode()
    shelf = Shelf(spilt=[data])
    read, byte = b"", 0
    while True:
        told = (await act(shelf, "artifact.read", artifact=KEPT_ID, byte=byte, length=length)).text
        head, _, body = told.partition("\n")
        body, _, more = body.partition("\n[more follows: read again with byte=")
        read += body.encode()
        if not more:
            break
        byte = int(more.rstrip("]"))
        assert f" of {len(data)}:" in head
    assert read == data


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"artifact": "01ARZ3NDEKTSV4RRFFQ69G5FA0"}, "no such artifact"),
        ({"artifact": "nonsense"}, "not a valid artifact id"),
        ({"artifact": KEPT_ID, "byte": 3}, "has 3 bytes"),
        ({"artifact": KEPT_ID, "byte": 10**30}, "has 3 bytes"),
        ({"artifact": KEPT_ID, "length": 0}, "was not called"),
    ],
)
async def test_what_can_not_be_read_is_told(arguments: dict[str, object], said: str) -> None:
    finished = await act(Shelf(spilt=[b"abc"]), "artifact.read", **arguments)
    assert finished.outcome is CallOutcome.ERROR
    assert said in finished.text


async def test_a_slice_never_needs_to_be_kept_itself() -> None:
    shelf = Shelf(spilt=[b"x" * 100_000])
    told = (await act(shelf, "artifact.read", artifact=KEPT_ID, length=10**9)).text
    assert len(told) <= MAX_RESULT_BYTES
    found = re.search(r"byte=(\d+)\]$", told)
    assert found is not None
    assert int(found[1]) == artifact.SLICE_BYTES
    assert len(shelf.spilt) == 1
    assert issubclass(OffsetBeyondEnd, PalyraError)
