"""The fixed rules of the built-in helper: what a message asks for, and the answers that need no tool."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from palyra.core.tool import JsonObject
from palyra.providers.embedded.dictation import read_dictation

MAX_CHARS = 500
"""Longer messages are not plain requests, whatever they begin with."""

_ABILITIES = """\
- tell the time: "what time is it?", "time in Asia/Tokyo"
- list files: "list the files", "list the files in docs"
- read a file: "read welcome.md", "lines 10 to 20 of 'my notes.txt'"
- search files: "search for invoice", "find budget in docs/"
- write a file, if you approve: "write a note: buy milk", "write 'Hello.' to hello.txt"
- run a command, if you approve: "run: date -u"
- fetch a page, if you approve: "fetch https://example.org"
- quote your first message: "what did I say first?\""""


class Topic(StrEnum):
    """What can be asked for without a tool."""

    GREETING = "greeting"
    THANKS = "thanks"
    FAREWELL = "farewell"
    HELP = "help"
    IDENTITY = "identity"
    FIRST = "first"
    ZONE = "zone"
    UNKNOWN = "unknown"


ANSWERS = {
    Topic.GREETING: (
        "Hello. I am Palyra's built-in helper: a few fixed rules, not a language model. "
        'Say "help" to see what I can do.\n'
        'Say "write a note: Palyra works" to see how I ask before I change anything.'
    ),
    Topic.THANKS: "You are welcome.",
    Topic.FAREWELL: "Goodbye. This conversation is recorded, so you can continue it later.",
    Topic.HELP: f"I am the built-in helper. I follow fixed rules and am not a language model. I can:\n{_ABILITIES}",
    Topic.IDENTITY: (
        "I am Palyra's built-in helper. I follow a few fixed rules and am not a language model, so Palyra answers "
        "without a key or a network. I use the same tools, and leave the same records, as a model would.\n"
        "`palyra providers add` connects a real model."
    ),
    Topic.ZONE: 'I know time zones only by name. Say "time in Europe/Berlin", for example.',
    Topic.UNKNOWN: (
        f"I am the small built-in helper and only follow fixed rules, so I cannot answer that. I can:\n{_ABILITIES}\n"
        "`palyra providers add` connects a real model."
    ),
}


@dataclass(frozen=True, slots=True)
class Use:
    """Call a tool."""

    tool: str
    arguments: JsonObject


_POLITE = r"(?:(?:hello|hi|hey|ok|please|palyra|(?:can|could|would|will) you)[,!]? )*"
_END = r"(?:,? (?:please|for me|now|thanks))*[\s.!?]*"
_QUOTED = r"""(?:"[^"]+"|'[^']+'|`[^`]+`)"""
_FILE = rf"(?:(?:the )?file )?(?P<path>{_QUOTED}|\S*[./]\w\S*?|\S+/)"
_HERE = r"(?:the |my )*(?:workspace|files)"
_FOLDER = rf"(?:{_HERE}|(?:the |my )?(?:folder )?(?P<folder>{_QUOTED}|\S+?)(?: folder)?)"
_PLACE = r"(?: in (?P<zone>.{1,60}?))?"
_ZONE = re.compile(r"[a-z]+(?:/[a-z0-9_+\-]+){1,2}|utc", re.IGNORECASE)

_TOPICS = (
    (Topic.GREETING, r"(?:hello|hi|hey|good (?:morning|afternoon|evening|day))(?: there| palyra| world)?"),
    (Topic.THANKS, r"(?:thanks|thank you)(?: very much)?"),
    (Topic.FAREWELL, r"(?:good ?)?bye|quit|exit"),
    (Topic.HELP, r"/?help(?: me)?|\?+|what (?:can|do) you do|what can i (?:do|ask|say)|what tools do you have"),
    (Topic.IDENTITY, r"(?:who|what) are you|are you (?:an? )?(?:ai|bot|human|person|model|language model|llm)"),
    (Topic.IDENTITY, r"(?:what|which) (?:language )?model (?:are you|is this|do you use)"),
    (Topic.FIRST, r"what did i say first|what was my first message"),
)


def _time(*, zone: str = "") -> Use | Topic:
    if not zone:
        return Use("time.now", {})
    return Use("time.now", {"zone": zone}) if _ZONE.fullmatch(zone) else Topic.ZONE


def _list(*, folder: str = ".") -> Use:
    return Use("files.list", {"folder": folder})


def _read(*, path: str, first: str = "", last: str = "") -> Use:
    if not first:
        return Use("files.read", {"path": path})
    line = max(1, int(first))
    return Use("files.read", {"path": path, "line": line, "lines": max(1, int(last) - line + 1)})


def _search(*, text: str, path: str = "") -> Use:
    return Use("files.search", {"text": text, "folder": path} if path else {"text": text})


def _run(*, command: str) -> Use:
    return Use("shell.run", {"command": command, "access": "write"})


def _fetch(*, url: str) -> Use:
    return Use("http.fetch", {"url": url})


# Each group of a pattern is an argument. Of two patterns that match, the earlier one counts.
_REQUESTS: tuple[tuple[Callable[..., Use | Topic], str], ...] = (
    (_run, rf"run (?P<command>{_QUOTED}){_END}"),
    (_run, r"run: *(?P<command>.+)"),
    (_fetch, rf"fetch (?P<url>https?://\S+?){_END}"),
    (_time, rf"(?:(?:tell me|what(?:['\u2019]s| is)) )?(?:the )?(?:current )?(?:time|date){_PLACE}{_END}"),
    (_time, rf"what (?:time|date|day) is it(?: today)?{_PLACE}{_END}"),
    (_list, rf"(?:list|show)(?: me)?(?: all)?(?: the| my)? files(?: in {_FOLDER})?{_END}"),
    (_list, rf"what(?:['\u2019]s| is) in {_HERE}{_END}"),
    (_list, rf"ls(?: {_FOLDER})?{_END}"),
    (_read, rf"(?:read|open|show|cat)(?: me)? {_FILE}{_END}"),
    (_read, rf"(?:(?:show|read) )?lines (?P<first>\d{{1,7}})(?: to |-)(?P<last>\d{{1,7}}) of {_FILE}{_END}"),
    (_search, rf"(?:search|find|look)(?: for)? (?P<text>.{{1,200}}?) in (?:{_HERE}|{_FILE}){_END}"),
    (_search, rf"search for (?P<text>.{{1,200}}?){_END}"),
)


def recognise(message: str) -> Use | Topic:
    """Return what the message asks for, as far as the rules can tell."""
    if (dictated := read_dictation(message)) is not None:
        return Use("files.write", dictated)
    message = message.strip()
    if len(message) > MAX_CHARS or "\n" in message:
        return Topic.UNKNOWN
    for topic, words in _TOPICS:
        if _compiled(f"(?:{words}){_END}").fullmatch(message):
            return topic
    for request, words in _REQUESTS:
        if match := _compiled(words).fullmatch(message):
            return request(**{name: _meant(text) for name, text in match.groupdict().items() if text is not None})
    return Topic.UNKNOWN


@cache
def _compiled(words: str) -> re.Pattern[str]:
    # Built when first needed: other models never need it, and it would slow down the daemon's start.
    return re.compile(_POLITE + words, re.IGNORECASE)


def _meant(text: str) -> str:
    return text[1:-1] if re.fullmatch(_QUOTED, text) else text
