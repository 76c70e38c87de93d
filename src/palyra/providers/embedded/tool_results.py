"""Reports tool results to a person.

Tool results are only ever shown: they are not matched against the rules that parse requests, so no text in a file can
make the helper do anything.
"""

import re
from datetime import datetime

from palyra.core.tool import CallOutcome, JsonObject, ToolCall
from palyra.providers.embedded.quoting import printable, quote

SHOWN_LINES = 40
SHOWN_CHARS = 3000
SHOWN_ENTRIES = 60
MAX_FAULT_CHARS = 600

_LISTED = re.compile(r"(?P<folder>.+): (?P<count>\d+)(?: or more)? entr(?:y|ies)")
_SIZE = re.compile(r" \((?P<size>\d+) bytes\)$")
_READ = re.compile(r"(?P<path>.+), (?P<size>\d+) bytes, from (?P<unit>line|byte) (?P<first>\d+):")
_FOUND = re.compile(r"(?P<count>\d+) (?:match|file)(?:es|s)? \((?P<files>\d+) files? searched\)")
_HIT = re.compile(r"(?P<path>.+?):(?P<line>\d+): (?P<text>.*)")
_TIME = re.compile(r"\w+, (?P<moment>[\d-]{10} [\d:]{8}) (?P<zone>\S+) \((?P<offset>UTC[+\-\d:]+)\)")
_MORE = re.compile(r"\[.+\]")

_FAULTS = {
    CallOutcome.ERROR: "That did not work:",
    CallOutcome.DENIED: "That is not allowed:",
    CallOutcome.TIMEOUT: "That took too long:",
    CallOutcome.INTERRUPTED: "That was interrupted, so ask again if you still want it:",
    CallOutcome.SKIPPED: "That was left out:",
}


def tell(call: ToolCall, result: str, *, beyond: bool = False) -> str:
    """Report the result of a call. A result in a form that the tool never returns is reported as an error."""
    for outcome, opening in _FAULTS.items():
        if result.startswith(mark := f"[{outcome.value}] "):
            return f"{opening} {quote(result.removeprefix(mark), limit=MAX_FAULT_CHARS)}"
    head, _, body = result.partition("\n")
    match call.tool:
        case "time.now" if found := _TIME.fullmatch(result.strip()):
            return _time(found)
        case "files.list" if found := _LISTED.fullmatch(head):
            return _listed(found, body)
        case "files.read" if found := _READ.fullmatch(head):
            return _read(found, body, beyond=beyond)
        case "files.read" if result.endswith((" is empty.", "its content is not shown.")):
            return printable(result)
        case "files.search" if found := _FOUND.fullmatch(head):
            return _found(found, body, call.arguments)
        case "files.write":
            return f"Done: {quote(result, limit=MAX_FAULT_CHARS)} `palyra files history` shows it, and can undo it."
        case "agent.delegate":
            return f"The other agent answered:\n{_part(result)}"
        case "time.now" | "files.list" | "files.read" | "files.search":
            return f"{_FAULTS[CallOutcome.ERROR]} {quote(result, limit=MAX_FAULT_CHARS)}"
        case _:
            return f"The tool {quote(call.tool, limit=60)} answered:\n{_part(result)}"


def _time(found: re.Match[str]) -> str:
    moment = datetime.strptime(found["moment"], "%Y-%m-%d %H:%M:%S")
    zone = found["offset"] if found["zone"] == "UTC" else f"{found['zone']}, {found['offset']}"
    return f"It is {moment:%H:%M} on {moment:%A}, {moment.day} {moment:%B %Y} ({zone.replace('UTC+00:00', 'UTC')})."


def _listed(found: re.Match[str], body: str) -> str:
    name = "The workspace" if found["folder"] in (".", "./") else f"The folder {quote(found['folder'], limit=200)}"
    entries = [line for line in body.split("\n") if line and not _MORE.fullmatch(line)]
    if not entries:
        return f"{name} is empty."
    count = int(found["count"])
    lines = [f"- {_entry(entry)}" for entry in entries[:SHOWN_ENTRIES]]
    if count > len(lines):
        lines.append(f"… and {count - len(lines)} more.")
    return f"{name} holds {count} {'entry' if count == 1 else 'entries'}:\n" + "\n".join(lines)


def _entry(line: str) -> str:
    sized = _SIZE.search(line)
    if sized is None:
        return quote(line)
    return f"{quote(line[: sized.start()])} ({_size(int(sized['size']))})"


def _size(size: int) -> str:
    if size < 1000:
        return f"{size} {'byte' if size == 1 else 'bytes'}"
    for unit in ("KB", "MB", "GB"):
        size_in_unit = size / 1000
        if size_in_unit < 1000 or unit == "GB":
            return f"{size_in_unit:.1f} {unit}"
        size //= 1000
    return ""


def _read(found: re.Match[str], body: str, *, beyond: bool) -> str:
    path = quote(found["path"], limit=200)
    first = int(found["first"])
    lines = body.split("\n")
    more = bool(_MORE.fullmatch(lines[-1])) and "more follows" in lines[-1]
    if more:
        lines.pop()
    shown = _part("\n".join(lines))
    count = len(shown.split("\n"))
    told = [f"{path} ({_size(int(found['size']))}):", *_indented(shown)]
    if beyond:
        told.insert(0, "I can not judge or sum up a text, being no language model, but I can show it.")
    if found["unit"] == "line" and (more or len("\n".join(lines).rstrip()) > len(shown.rstrip())):
        begin = first + count
        told.append(f"There is more: say \"lines {begin} to {begin + SHOWN_LINES - 1} of '{path}'\".")
    return "\n".join(told)


def _indented(text: str) -> list[str]:
    # Set off from the helper's own words, so that a file's text cannot pass for the helper's.
    return [f"    {line}" for line in text.split("\n")]


def _found(found: re.Match[str], body: str, arguments: JsonObject) -> str:
    files = int(found["files"])
    lines = [line for line in body.split("\n") if line]
    notes = [lines.pop()[1:-1]] if lines and _MORE.fullmatch(lines[-1]) else []
    by_name = not arguments.get("text")
    if not lines:
        if by_name:
            return "I found no file of that name."
        return f"I found nothing. I looked into {files} {'file' if files == 1 else 'files'}."
    hits = [_hit(line, by_name=by_name) for line in lines[:SHOWN_ENTRIES]]
    what = "file" if by_name else "line"
    told = [f"I found {len(lines)} {what}{'' if len(lines) == 1 else 's'}:", *hits]
    if len(lines) > SHOWN_ENTRIES:
        told.append(f"… and {len(lines) - SHOWN_ENTRIES} more.")
    return "\n".join(told + [f"Note: {quote(note)}." for note in notes])


def _hit(line: str, *, by_name: bool) -> str:
    hit = None if by_name else _HIT.fullmatch(line)
    return f"- {quote(line)}" if hit is None else f"- {quote(hit['path'])}, line {hit['line']}: {quote(hit['text'])}"


def _part(text: str) -> str:
    """Return the beginning of a text in whole lines, as much as is readable in a chat."""
    lines = printable(text.rstrip("\n")).split("\n")[:SHOWN_LINES]
    while len(lines) > 1 and sum(len(line) + 1 for line in lines) > SHOWN_CHARS:
        lines.pop()
    return "\n".join(line if len(line) <= SHOWN_CHARS else line[:SHOWN_CHARS] + "…" for line in lines)
