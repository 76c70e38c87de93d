"""Reports tool results to a person.

Tool results are only ever shown: they are not matched against the rules that parse requests, so no text in a file can
make the helper do anything.
"""

import re

from palyra.core.text.escaping import printable, printable_row
from palyra.core.tool import CallOutcome, ToolCall

MAX_LINES = 40
MAX_CHARS = 3000
MAX_ROW_CHARS = 600

_READ = re.compile(r".+, \d+ bytes, from (?P<unit>line|byte) (?P<first>\d+):")
_MORE = re.compile(r"\[more follows.*\]")
_FAULTS = {
    CallOutcome.ERROR: "That did not work:",
    CallOutcome.DENIED: "That is not allowed:",
    CallOutcome.TIMEOUT: "That took too long:",
    CallOutcome.INTERRUPTED: "That was interrupted, so ask again if you still want it:",
    CallOutcome.SKIPPED: "That was left out:",
}


def report(call: ToolCall, result: str) -> str:
    """Return what a person is told of a call's result."""
    for outcome, opening in _FAULTS.items():
        if result.startswith(mark := f"[{outcome.value}] "):
            return f"{opening} {_row(result.removeprefix(mark))}"
    head, _, body = result.rstrip("\n").partition("\n")
    match call.tool:
        case "time.now":
            return f"It is {_row(result)}."
        case "files.list":
            return _listed(head, body)
        case "files.read":
            return _read(call, head, body)
        case "files.search":
            return _set_off(f"{_row(head)}{':' if body else '.'}", body)
        case "files.write":
            return f"Done: {_row(result)} Undo it with `palyra files restore last`."
        case _:
            return _set_off(f"The tool {_row(call.tool)} answered:", result)


def _listed(head: str, body: str) -> str:
    folder, _, count = head.rpartition(": ")
    name = "The workspace" if folder in (".", "./") else f"The folder {_row(folder)}"
    return _set_off(f"{name} holds {count}:", body) if body else f"{name} is empty."


def _read(call: ToolCall, head: str, body: str) -> str:
    match = _READ.fullmatch(head)
    if match is None:
        return _row(head)
    lines = body.split("\n")
    if more := bool(_MORE.fullmatch(lines[-1])):
        lines.pop()
    displayed_lines = _beginning(lines)
    answer = _set_off(_row(head), "\n".join(lines))
    if match["unit"] == "line" and (more or len(displayed_lines) < len(lines)):
        first = int(match["first"]) + len(displayed_lines)
        path = _row(str(call.arguments.get("path", "")))
        answer += f"\nThere is more: say \"lines {first} to {first + MAX_LINES - 1} of '{path}'\"."
    return answer


def _set_off(opening: str, text: str) -> str:
    """Return the beginning of a text, indented: a file's text cannot pass for the helper's."""
    lines = text.rstrip("\n").split("\n") if text else []
    displayed_lines = _beginning(lines)
    left = len(lines) - len(displayed_lines)
    rows = [opening, *(f"    {printable(line[:MAX_CHARS])}" for line in displayed_lines)]
    return "\n".join([*rows, f"… and {left} more {'line' if left == 1 else 'lines'}."] if left else rows)


def _beginning(lines: list[str]) -> list[str]:
    """Return as many lines as are readable in a chat, at least one."""
    displayed_lines = lines[:MAX_LINES]
    while len(displayed_lines) > 1 and sum(len(line) + 1 for line in displayed_lines) > MAX_CHARS:
        displayed_lines.pop()
    return displayed_lines


def _row(text: str) -> str:
    """Return a text on one line, truncated."""
    line = printable_row(" ".join(text.split()))
    return line if len(line) <= MAX_ROW_CHARS else line[:MAX_ROW_CHARS] + "…"
