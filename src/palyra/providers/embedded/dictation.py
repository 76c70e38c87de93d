"""Requests to write text to a file: what is written is exactly the person's text, character by character.

So messages of several lines are parsed too, which the other rules do not accept.
"""

import re

from palyra.core.tool import JsonObject

NOTES = "notes.txt"

_POLITE = r"(?:(?:please|hey|ok|(?:can|could|would|will) you|i (?:want|would like) you to),? )*"
_FILE = (
    r"(?:(?:a|the|my|new|text|file|document|end of|called|named) )*"
    r"""(?:"(?P<named>[^"\n]+)"|'(?P<named2>[^'\n]+)'|`(?P<named3>[^`\n]+)`|(?P<path>[^\s"'`:]*[^\s"'`:.,!?]))"""
)
_PUT = r"(?P<verb>write|save|store|add|append|put|jot)(?: down)?"
_BEHIND = frozenset({"add", "append", "put", "jot"})
"""The existing content of a file stays, and the text is appended as a line."""
_TO = r"(?:to|into|in|on|onto)"
_THIS = r"(?:(?:this|that|the following|following)(?: (?:text|words?|code|lines?|content))? )?"
_ASK = r"[.!?]*\s*"
_REST = r":[ \t]?\n?(?P<text>.+)"

_FORMS = tuple(
    re.compile(_POLITE + form, re.IGNORECASE | re.DOTALL)
    for form in (
        # write to a.txt: Hello
        rf"{_PUT} {_THIS}{_TO} {_FILE}{_REST}",
        # create a file a.txt with the text: Hello
        rf"(?P<verb>create|make) {_FILE} (?:with|containing|saying|that says)(?: the)?"
        rf"(?: (?:text|content|contents|words?|line))?(?:{_REST}| (?P<text2>.+))",
        # write a note: Hello
        r"(?:write|make|add|take|leave|jot|save|create|put)(?: down)?(?: (?:a|quick|short|little|new))* note"
        r"(?: (?:that says|saying|that|about|with|reading))?[: ]\s*(?P<note>.+)",
        r"note: ?(?P<note>.+)",
        # add Hello to my notes
        rf"{_PUT} (?P<note>.+) {_TO} (?:my notes|(?:my |the )?list of notes){_ASK}",
        # write Hello to a.txt
        rf"{_PUT} (?:(?:the )?(?:text|words?|line) (?=[\"'`“„«\u2018]))?(?P<text>.+) {_TO} {_FILE}{_ASK}",
    )
)
_FENCED = re.compile(r"\s*(?P<fence>```+|~~~+)[^\n`]*\n(?P<text>.*?)(?P=fence)\s*", re.DOTALL)
_QUOTED = re.compile(r"""\s*(?:"(.*)"|“(.*)”|„(.*)[“”]|«(.*)»|'(.*)'|\u2018(.*)\u2019|`(.*)`)\s*""", re.DOTALL)
_LOOKS_LIKE_A_FILE = re.compile(r"(?!https?:).*(?:/.|\.\w{1,12}$)|Makefile|Dockerfile|README|LICENSE")
_PAGE = re.compile(r"https?://|www\.", re.IGNORECASE)


def read_dictation(message: str) -> JsonObject | None:
    """Return the arguments of the `files.write` that the message asks for, or None if it asks for none."""
    for form in _FORMS:
        if match := form.fullmatch(message.lstrip()):
            groups = match.groupdict()
            if note := groups.get("note"):
                return _line(NOTES, _meant(note))
            path = next(filter(None, (groups.get(name) for name in ("named", "named2", "named3", "path"))))
            text = groups.get("text") or groups.get("text2") or ""
            # The content of a page is not in the message.
            if (groups["path"] and not _LOOKS_LIKE_A_FILE.fullmatch(path)) or _PAGE.match(text):
                return None
            if groups["verb"].lower() in _BEHIND:
                return _line(path, _meant(text))
            return {"path": path, "text": _meant(text), "mode": "replace"}
    return None


def _meant(text: str) -> str:
    """Return a text without the quotes or the fence around it; nothing else is changed."""
    if match := _FENCED.fullmatch(text):
        return match["text"]
    if match := _QUOTED.fullmatch(text):
        return next((part for part in match.groups() if part is not None), text)
    return text


def _line(path: str, text: str) -> JsonObject:
    return {"path": path, "text": text if text.endswith("\n") else f"{text}\n", "mode": "append"}
