"""What is looked for comes first, and always in the same order."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.core.tool import ToolSpec
from palyra.tools.tool_ranking import rank
from tests.support.many_tools import a_tool, crowd

MANY = [tool.spec for tool in crowd()]
MIXED = [
    a_tool("mcp.mail.sendMessage", "Sends an e-mail to one or more people.", arguments=("to", "subject")).spec,
    a_tool("mcp.mail.search_threads", "Looks through the mailbox.", arguments=("query",)).spec,
    a_tool("weather.forecast", "Tells the weather of the coming days for a place.", arguments=("city",)).spec,
    a_tool("mcp.calendar.create_event", "Adds an appointment.", arguments=("start", "end", "guests")).spec,
    a_tool("mcp.calendar.list_events", "Shows appointments of a day.", arguments=("day",)).spec,
    a_tool("stocks.quote", "The price of a share now.", arguments=("ticker",)).spec,
]


def first(query: str, tools: list[ToolSpec]) -> str:
    found = rank(query, tools)
    return found[0].name if found else ""


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("send a message", "mcp.mail.sendMessage"),
        ("write an e-mail to Ben", "mcp.mail.sendMessage"),
        ("weather in Oslo", "weather.forecast"),
        ("What will the weather be like?", "weather.forecast"),
        ("create event", "mcp.calendar.create_event"),
        ("list the events of today", "mcp.calendar.list_events"),
        ("appointment guests", "mcp.calendar.create_event"),
        ("share price", "stocks.quote"),
        ("ticker", "stocks.quote"),
        ("foreca", "weather.forecast"),
        ("MCP.Mail.Search_Threads", "mcp.mail.search_threads"),
    ],
)
def test_the_fitting_tool_comes_first(query: str, name: str) -> None:
    assert first(query, MIXED) == name


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("create an issue in the tracker", "mcp.tracker.create_issue"),
        ("delete wiki page of the shop", "mcp.shop.delete_wiki_page"),
        ("list pull requests forge", "mcp.forge.list_pull_request"),
        ("mcp.lab.update_webhook", "mcp.lab.update_webhook"),
    ],
)
def test_the_fitting_one_of_five_hundred_comes_first(query: str, name: str) -> None:
    assert len(MANY) == 500
    assert first(query, MANY) == name


def test_what_fits_nothing_finds_nothing() -> None:
    for query in ("", "   ", "zzzyx", "?!", "\0"):
        assert rank(query, MIXED) == []


def test_a_tool_with_every_word_stands_before_one_that_repeats_a_word() -> None:
    tools = [
        a_tool("a.report", "Report, report and report: a report of reports.").spec,
        a_tool("b.tool", "Makes a report for the tax office.").spec,
    ]
    assert first("tax report", tools) == "b.tool"


def test_those_as_good_stand_by_name() -> None:
    tools = [a_tool(f"same.{letter}", "Does the same.").spec for letter in "cab"]
    assert [spec.name for spec in rank("same", tools)] == ["same.a", "same.b", "same.c"]


@given(st.text(max_size=60), st.integers())
def test_the_order_does_not_depend_on_how_the_tools_come(query: str, seed: int) -> None:
    shuffled = MIXED[:]
    random.Random(seed).shuffle(shuffled)
    assert rank(query, shuffled) == rank(query, MIXED)
