"""What tools bring back is told in words that a person can use."""

import pytest

from palyra.core.tool import JsonObject
from palyra.providers.embedded.tool_results import report
from tests.unit.providers.conversation import a_call


def told(tool: str, result: str, arguments: JsonObject | None = None) -> str:
    return report(a_call(tool, arguments), result)


def test_the_time_is_a_sentence() -> None:
    result = "Sunday, 2026-03-01 23:05:09 Asia/Tokyo (UTC+09:00)"
    assert told("time.now", result) == f"It is {result}."


def test_a_folder_is_a_list() -> None:
    result = ".: 2 entries\ndocs/\na.txt (12 bytes)"
    assert told("files.list", result) == "The workspace holds 2 entries:\n    docs/\n    a.txt (12 bytes)"


def test_an_empty_folder_is_called_empty() -> None:
    assert told("files.list", "docs: 0 entries") == "The folder docs is empty."


def test_a_long_listing_says_how_much_is_missing() -> None:
    result = "\n".join([".: 200 entries", *(f"f{n} (1 bytes)" for n in range(200))])
    assert told("files.list", result).endswith("… and 160 more lines.")


def test_a_file_is_shown_with_its_name_and_set_off() -> None:
    result = "notes.txt, 10 bytes, from line 1:\nhello\nworld\n"
    assert told("files.read", result) == "notes.txt, 10 bytes, from line 1:\n    hello\n    world"


def test_of_a_long_file_the_beginning_is_shown_and_the_next_step_named() -> None:
    body = "\n".join(f"row {n}" for n in range(1, 101))
    answer = told("files.read", f"a.txt, 900 bytes, from line 1:\n{body}", {"path": "a.txt"})
    assert "row 40" in answer
    assert "row 41" not in answer
    assert "lines 41 to 80 of 'a.txt'" in answer


def test_the_tools_own_note_about_more_is_not_shown_as_content() -> None:
    result = "a.txt, 99 bytes, from line 3:\nx\n[more follows: read again with line=4]"
    answer = told("files.read", result, {"path": "a.txt"})
    assert "more follows" not in answer
    assert "lines 4 to 43 of 'a.txt'" in answer


def test_matches_are_listed_with_their_lines() -> None:
    result = "2 matches (5 files searched)\na.txt:3: the budget: high\ndocs/b.md:10: budget"
    assert told("files.search", result, {"text": "budget"}) == (
        "2 matches (5 files searched):\n    a.txt:3: the budget: high\n    docs/b.md:10: budget"
    )


def test_nothing_found_is_said_plainly() -> None:
    assert told("files.search", "0 matches (1 file searched)") == "0 matches (1 file searched)."


@pytest.mark.parametrize(
    ("result", "opening"),
    [
        ("[error] There is no 'x' in the workspace.", "That did not work: There is no 'x'"),
        ("[denied] The policy says no.", "That is not allowed: The policy"),
        ("[timeout] files.read was stopped.", "That took too long: files.read"),
        ("[interrupted] gone", "That was interrupted, so ask again"),
        ("[skipped] the limit", "That was left out: the limit"),
    ],
)
def test_faults_are_passed_on_as_such(result: str, opening: str) -> None:
    assert told("files.read", result).startswith(opening)


def test_binary_and_empty_files_are_described() -> None:
    binary = "a.png is a PNG image of 3 bytes; its content is not shown."
    assert told("files.read", binary) == binary
    assert told("files.read", "a is empty.") == "a is empty."


def test_a_tool_that_is_not_known_is_quoted() -> None:
    assert told("magic.wand", "abra\x1b[0m") == "The tool magic.wand answered:\n    abra⟨ESC⟩[0m"
