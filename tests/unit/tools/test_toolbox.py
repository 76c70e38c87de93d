"""Few tools are offered, many are found: what a model sees of what there is."""

import pytest

from palyra.core.tool import CallOutcome
from palyra.tools import catalog
from palyra.tools.arguments import CallProblem, check
from palyra.tools.base import Tool
from palyra.tools.execution import ToolResult, execute
from palyra.tools.tool_search import FOUND_TOKENS as OF_ONE_SEARCH
from palyra.tools.tool_search import MAX_RESULTS, tokens_of
from palyra.tools.toolbox import ADDED_TOKENS, FOUND_TOKENS, Toolbox
from tests.support.many_tools import a_tool, crowd
from tests.unit.tools.surroundings import a_call, a_context

BUILT_IN = tuple(tool.spec.name for tool in catalog.BUILTIN)
MANY = crowd()
LARGE = "x" * 4 * 1500


async def search(toolbox: Toolbox, query: str) -> ToolResult:
    call = a_call("tools.search", {"query": query})
    finished = await execute(call, catalog=toolbox.offer(None), context=a_context(), timeout_ms=60_000)
    assert isinstance(finished, ToolResult)
    assert finished.outcome is CallOutcome.OK
    return finished


def test_few_are_offered_with_the_built_in_ones_by_name() -> None:
    few = [a_tool("zoo.feed", "Feeds."), a_tool("ark.board", "Boards.")]
    offered = Toolbox(lambda: few).offer(None)
    assert offered.names() == tuple(sorted((*BUILT_IN, "zoo.feed", "ark.board")))
    assert offered.hidden == frozenset()


def test_they_are_few_as_long_as_they_fit() -> None:
    fitting: list[Tool] = []
    while sum(tokens_of(tool.spec) for tool in (*fitting, MANY[len(fitting)])) <= ADDED_TOKENS:
        fitting.append(MANY[len(fitting)])
    assert Toolbox(lambda: fitting).offer(None).hidden == frozenset()
    more = [*fitting, MANY[len(fitting)]]
    assert Toolbox(lambda: more).offer(None).hidden == {tool.spec.name for tool in more}


def test_many_are_hidden_and_can_be_searched() -> None:
    offered = Toolbox(lambda: MANY).offer(None)
    assert offered.names() == tuple(sorted((*BUILT_IN, "tools.search")))
    assert len(offered.hidden) == 500
    (spec,) = [spec for spec in offered.specs() if spec.name == "tools.search"]
    assert "There are 500: mcp.archive (50), " in spec.description


def test_what_was_found_stands_behind_in_its_order_and_nothing_before_it_moves() -> None:
    toolbox = Toolbox(lambda: MANY)
    one, two = "mcp.shop.create_issue", "mcp.forge.create_issue"
    before, after = toolbox.offer(None, (one,)), toolbox.offer(None, (one, two))
    assert before.names() == (*toolbox.offer(None).names(), one)
    assert after.names() == (*before.names(), two)
    assert after.specs()[: len(before.specs())] == before.specs()
    assert one not in after.hidden
    assert len(after.hidden) == 498


def test_what_is_gone_by_now_is_passed_over() -> None:
    names = Toolbox(lambda: MANY).offer(None, ("gone.tool", "mcp.shop.create_issue")).names()
    assert names[-1] == "mcp.shop.create_issue"
    assert "gone.tool" not in names


def test_of_too_much_that_was_found_the_latest_stay() -> None:
    large = [a_tool(f"large.{letter}", LARGE) for letter in "abcd"]
    names = Toolbox(lambda: large).offer(None, ("large.d", "large.a", "large.c")).names()
    assert names[-2:] == ("large.a", "large.c")
    assert "large.d" not in names
    huge = [a_tool("huge.tool", "x" * 4 * FOUND_TOKENS)]
    assert Toolbox(lambda: huge).offer(None, ("huge.tool",)).names()[-1] == "huge.tool"


def test_an_agent_sees_what_its_list_names_and_can_search_in_that_alone() -> None:
    allowed = ("time.now", *(tool.spec.name for tool in MANY if tool.spec.name.startswith("mcp.shop.")))
    offered = Toolbox(lambda: MANY).offer(allowed, ("mcp.forge.create_issue", "mcp.shop.read_label"))
    assert offered.names() == ("time.now", "tools.search", "mcp.shop.read_label")
    assert len(offered.hidden) == 49


@pytest.mark.parametrize("name", ["tools.search", "files.read"])
def test_no_source_can_put_a_tool_of_its_own_in_the_place_of_a_built_in_one(name: str) -> None:
    for others in ([], MANY):
        toolbox = Toolbox(lambda others=others: [a_tool(name, "A trap."), *others])  # type: ignore[misc]
        assert "A trap." not in [spec.description for spec in toolbox.offer(None, (name,)).specs()]


async def test_a_search_lists_the_best_with_their_arguments() -> None:
    finished = await search(Toolbox(lambda: MANY), "create issue tracker")
    assert finished.discovered_tools[0] == "mcp.tracker.create_issue"
    assert len(finished.discovered_tools) <= MAX_RESULTS
    assert "mcp.tracker.create_issue: Create a issue of the tracker, with its title" in finished.text
    assert "arguments: id (string), title (string, optional), text (string, optional)" in finished.text
    assert [name for name in finished.discovered_tools if f"{name}: " not in finished.text] == []


async def test_a_search_brings_no_more_than_fits_into_the_next_prompt() -> None:
    large = [a_tool(f"large.{number}", LARGE) for number in range(20)]
    toolbox = Toolbox(lambda: large)
    finished = await search(toolbox, "large")
    assert len(finished.discovered_tools) == OF_ONE_SEARCH // 1500
    assert (
        toolbox.offer(None, finished.discovered_tools).names()[-len(finished.discovered_tools) :]
        == finished.discovered_tools
    )
    assert len(finished.text) < 4000


async def test_a_search_that_finds_nothing_says_what_there_is() -> None:
    finished = await search(Toolbox(lambda: MANY), "zzzyx")
    assert finished.discovered_tools == ()
    assert "No tool matches 'zzzyx'" in finished.text
    assert "mcp.shop (50)" in finished.text


def test_a_call_of_what_was_not_found_yet_is_told_how_to_find_it() -> None:
    offered = Toolbox(lambda: MANY).offer(None)
    bad = check(offered, a_call("mcp.shop.create_issue", {"id": "1"}))
    assert isinstance(bad, CallProblem)
    assert "Find it with tools.search, then call it" in bad.reason
    unknown = check(offered, a_call("mcp.nowhere.frobnicate"))
    assert isinstance(unknown, CallProblem)
    assert "Unknown tool" in unknown.reason
    assert "tools.search" in unknown.reason
