"""The requests that need a tool: the time, the files of the workspace, another agent."""

import re
from collections.abc import Callable
from functools import cache

from palyra.providers.embedded.intents import Intent, Say, Topic, Use
from palyra.providers.embedded.phrase import WordSequence
from palyra.providers.embedded.time_zones import zone_of

_MY = r"(?:my |our |your |this |these |those |current |whole |entire |full |available |other |own )*"
_DIR = r"(?:sub)?(?:folder|directory|dir)"
_NAMED = r"(?:called |named )?"
_PLACE = rf"{_MY}(?:{_DIR} {_NAMED})?(?P<folder>\S+)(?: {_DIR})?"
_FILE = rf"{_MY}(?:file |document )?{_NAMED}(?P<path>@[qp])(?: file| document)?"
_HERE = frozenset({"here", "workspace", "folder", "directory", "dir", "files", "project", "it", "there", "this", ""})

_IN = r"(?: in (?P<place>.{1,60}?))?(?: right| today| at moment)?"
_UNIT = r"(?:time|date|day|weekday)"
_TIME = (
    rf"(?:what|which) (?:{_UNIT}|year|month)(?: and {_UNIT})? (?:is it|it is|is today|do we have)(?: today)?{_IN}",
    rf"(?:what is |give |show )?(?:current |local |exact |today )*{_UNIT}(?: and {_UNIT})?(?: is it| it is)?(?: today)?"
    rf"{_IN}",
    rf"how late is it{_IN}|what is today",
)

_VERB = r"(?:read|open|show|display|print|cat|view|see|output|load|get|check|look at|look into|have look at|find out)"
_OF = rf"(?:{_MY}(?:contents?|text) (?:of|in|from) )?"
_READ = (
    rf"{_VERB} (?:out )?{_OF}{_FILE}(?: aloud| out loud)?",
    rf"{_VERB} {_OF}{_MY}(?:file|document) {_NAMED}(?P<path>\S+)",
    rf"what does {_FILE} (?:say|contain|have in it|look like)",
    rf"what (?:is|stands|do i have|does it say) (?:written )?(?:in|inside) {_FILE}",
    rf"(?:{_VERB} )?lines? (?P<first>\d{{1,7}})(?: (?:-|to|through|and|until) (?P<last>\d{{1,7}}))?"
    rf" (?:of|in|from) {_FILE}",
    rf"(?:{_VERB} )?lines? (?P<first>\d{{1,7}})-(?P<last>\d{{1,7}}) (?:of|in|from) {_FILE}",
    rf"(?:{_VERB} )?first (?P<count>\d{{1,5}}) lines (?:of|in|from) {_FILE}",
)
_BEYOND = (
    rf"(?:summari[sz]e|explain|describe|analy[sz]e|review|translate|proofread) {_OF}{_FILE}(?: .{{1,40}})?",
    rf"(?:give |write |make )?(?:short |brief )?summary of {_OF}{_FILE}",
    rf"what is {_FILE} about",
)

_KINDS = r"(?:files|folders|directories|documents|contents)(?: and (?:files|folders|directories))?"
_LIST = (
    r"(?:ls|dir|tree)(?: -\w+)*(?: (?P<folder>\S+))?",
    rf"(?:list|show|display|see|view|print|get|give|enumerate|(?:make |give |show )?list of|what are|which are) {_MY}"
    rf"(?:workspace |project )?(?:{_KINDS}|workspace)(?: there are| (?:that )?(?:i|you) (?:have|can see))?"
    rf"(?: (?:are )?(?:in|of|inside|under|from) {_PLACE})?",
    rf"(?:what|which|how many) {_KINDS}(?: (?:are|do|can|exist|is|there|you|i|we|here|have|see|access|available|read))+"
    rf"(?: (?:in|inside|under) {_PLACE})?",
    rf"(?:are there|do (?:i|you|we) have|is there) {_KINDS}(?: here)?(?: (?:in|inside|under) {_PLACE})?",
    rf"what (?:is|do (?:i|you) (?:have|see)) (?:in|inside) {_MY}(?:(?P<folder>\S+) {_DIR}|workspace|{_DIR}|here)",
    rf"what (?:is|do (?:i|you) (?:have|see)) (?:in|inside) {_MY}{_DIR} {_NAMED}(?P<folder>\S+)",
    rf"(?:list|show|open|browse|look (?:in|into|at|inside)|see|view|display) {_MY}(?:contents of )?{_MY}"
    rf"(?:(?P<folder>\S+) {_DIR}|workspace|{_DIR})",
    rf"(?:list|show|open|browse|look (?:in|into|at|inside)|see|view|display) {_MY}{_DIR} {_NAMED}(?P<folder>\S+)",
    r"(?:list|browse|look (?:in|inside)) (?P<folder>@[qp])",
    r"(?:my )?(?:files|workspace)",
)

_WORD = (
    r"(?:(?:text|words?|string|phrase|term|mentions? of|occurrences? of|references? to|anything about|something about"
    r"|lines? (?:with|containing|that contain)) )?"
)
_WHAT = rf"{_WORD}(?P<text>.{{1,200}}?)"
_ALL = rf"{_MY}(?:workspace )?(?:files|documents|workspace|notes|code|project|{_DIR}|everything|here)"
_SPOT = rf"{_MY}(?:(?:{_DIR}|file) )?(?P<folder>@[qp]|\S+(?= {_DIR}))(?: {_DIR})?"
_SEARCH = (
    rf"(?:search|grep|scan|look|go)(?: in| through| inside)? (?:{_ALL}|{_SPOT}) for {_WHAT}",
    rf"(?:search|look|grep|find|scan)(?: for)? {_WHAT} (?:in|inside|within|across|through|from) (?:{_ALL}|{_SPOT})",
    rf"(?:which|what)(?: of my)? (?:files?|documents?|notes) (?:contains?|mentions?|has|have|includes?"
    rf"|(?:talks? )?about) {_WHAT}",
    rf"where (?:is|are) {_WHAT} (?:mentioned|used|defined|written)|where do i mention (?P<text2>.{{1,200}})",
    rf"is there {_WHAT} (?:in|inside) (?:{_ALL}|{_SPOT})",
    rf"(?:search|grep)(?: for)? {_WHAT}",
    r"find (?:text|words?|string|phrase|term|mentions? of|occurrences? of|references? to) (?P<text>.{1,200})",
    r"(?:find|look for) (?P<text>@q)",
)
_FIND = (
    rf"(?:find|locate|look for|search for) {_MY}files? {_NAMED}(?P<path>\S+)",
    rf"(?:find|locate|where is) {_MY}(?P<path>@p)(?: file)?",
    rf"(?:find|list|show|get) {_MY}(?P<kind>@p) files",
)

_WEB = (
    r"(?:search|look|browse|find|check|open|visit|fetch|download|read|show|go|get|summari[sz]e|what is)\b.{0,300}"
    r"(?:@u|\b(?:web|internet|online|google|wikipedia|website|url)\b).{0,300}|google .{1,300}|@u",
)
_WRITING = (
    r"(?:write|create|make|save|add|append|put|edit|change|modify|update|delete|remove|erase|rename|move|copy|overwrite"
    r"|store|jot|take|leave|insert|replace)"
)
_WRITE = (
    rf"{_WRITING} (?:.{{1,200}} )?(?:notes?|files?|folders?|directory|documents?|@p)(?: .{{1,200}})?",
    r"(?:search|find) and (?:replace|delete|remove) .{1,200}",
)
_DELEGATE = (
    r"(?:delegate(?: this)?(?: to agent)?|(?:have|ask|let) (?:another |sub-?)?(?:agent|subagent)(?: to| do)?) "
    r"(?P<task>.{1,400})",
)


def _time(phrase: WordSequence, found: re.Match[str]) -> Intent:
    place = _group(phrase, found, "place")
    if not place:
        return Use("time.now", {})
    zone = zone_of(place)
    return Say(Topic.PLACE) if zone is None else Use("time.now", {"zone": zone})


def _read(phrase: WordSequence, found: re.Match[str]) -> Intent:
    path = _group(phrase, found, "path")
    if path in ("readme", "Readme"):
        path = "README.md"
    if path.endswith("/") or path in (".", ".."):
        return Use("files.list", {"folder": path})
    if (first := _number(found, "first")) is not None:
        last = _number(found, "last") or first
        return Use("files.read", {"path": path, "line": max(1, first), "lines": max(1, last - first + 1)})
    if (count := _number(found, "count")) is not None:
        return Use("files.read", {"path": path, "lines": max(1, count)})
    return Use("files.read", {"path": path})


def _read_beyond(phrase: WordSequence, found: re.Match[str]) -> Intent:
    return Use("files.read", {"path": _group(phrase, found, "path")}, beyond=True)


def _list(phrase: WordSequence, found: re.Match[str]) -> Intent:
    return Use("files.list", {"folder": _folder(phrase, found)})


def _search(phrase: WordSequence, found: re.Match[str]) -> Intent:
    text = _group(phrase, found, "text") or _group(phrase, found, "text2")
    folder = _folder(phrase, found)
    return Use("files.search", {"text": text} if folder == "." else {"text": text, "folder": folder})


def _find(phrase: WordSequence, found: re.Match[str]) -> Intent:
    if kind := _group(phrase, found, "kind"):
        return Use("files.search", {"glob": "*" + kind.lstrip("*")})
    path = _group(phrase, found, "path")
    return Use("files.search", {"glob": f"*{path.rpartition('/')[2]}*"})


def _delegate(phrase: WordSequence, found: re.Match[str]) -> Intent:
    return Use("agent.delegate", {"task": _group(phrase, found, "task")})


def _topic(topic: Topic) -> Callable[[WordSequence, re.Match[str]], Intent]:
    return lambda phrase, found: Say(topic)


# Of two that match, the earlier one counts: a request about the web is not about files, and a change is not a search.
_RULES = tuple(
    (pattern, answer)
    for patterns, answer in (
        (_TIME, _time),
        (_DELEGATE, _delegate),
        (_WEB, _topic(Topic.WEB)),
        (_FIND, _find),
        (_READ, _read),
        (_BEYOND, _read_beyond),
        (_LIST, _list),
        (_WRITE, _topic(Topic.WRITE)),
        (_SEARCH, _search),
    )
    for pattern in patterns
)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    # Built when first needed: other models never need it, and it would slow down the daemon's start.
    return re.compile(pattern)


def read_request(phrase: WordSequence) -> Intent | None:
    """Return what the phrase asks for, if it is about tools."""
    text = phrase.text
    for pattern, answer in _RULES:
        if found := _compiled(pattern).fullmatch(text):
            return answer(phrase, found)
    return None


def _group(phrase: WordSequence, found: re.Match[str], name: str) -> str:
    if name not in found.re.groupindex or found[name] is None:
        return ""
    return phrase.value(found, name)


def _folder(phrase: WordSequence, found: re.Match[str]) -> str:
    folder = _group(phrase, found, "folder")
    return "." if folder.lower() in _HERE else folder


def _number(found: re.Match[str], name: str) -> int | None:
    if name not in found.re.groupindex or found[name] is None:
        return None
    return int(found[name])
