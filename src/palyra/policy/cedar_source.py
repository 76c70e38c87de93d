"""Splits policy texts into single policies, each with its id and its position.

The engine reports what is wrong with a text but not where. So the text is split into policies here, and the position of
an error is found by running the engine again on texts that differ in one word.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

RENAMED_ATTRIBUTES = {"has_channel": "approver_reachable"}
"""Attributes of the context that have another name today."""

_TOKEN = re.compile(
    # Some editors begin a file with a UTF-8 byte order mark.
    r"""(?P<space>\s+|\ufeff|//[^\n]*)"""
    r"""|(?P<string>"(?:[^"\\]|\\.)*")"""
    r"""|(?P<word>[A-Za-z_][A-Za-z0-9_]*|[0-9]+)"""
    r"""|(?P<sign>::|==|!=|<=|>=|&&|\|\||[@(){}\[\].,;:<>=!+*/%?|&-])""",
    re.DOTALL,
)
_NAMED = re.compile(r"`([^`]+)`|'([^']+)'|(@\w+)|: (\S+)$")
_ESCAPE = re.compile(r"\\(?:u\{([0-9A-Fa-f]{1,6})\}|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}
# A word of the language that cannot appear in the position of another token.
_MISFIT = "else"
_WORDS = frozenset({"commands", "common_commands"})
_PERMIT_EXACTLY = (
    "Options can have a harmless command run any other program, and common_commands is always empty."
    ' Permit by context.access == "read" or by the exact context.command.'
)


@dataclass(frozen=True, slots=True)
class PolicyProblem:
    """A problem in a policy file: where it is, and how to fix it."""

    file: str
    line: int
    column: int
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.what} {self.remedy}"


@dataclass(frozen=True, slots=True)
class PolicyToken:
    """A word or a sign of a text, and its offset."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy of a file."""

    id: str
    """The value of its @id; empty if it has none."""
    text: str
    reason: str
    """The value of its @reason: why it decides so, for a person."""
    permits: bool
    file: str
    line: int
    column: int

    def position(self, offset: int) -> tuple[int, int]:
        """Return line and column of an offset in the text."""
        line, column = position(self.text, offset)
        return self.line + line - 1, column if line > 1 else self.column + column - 1

    def problem(self, what: str, remedy: str, *, offset: int = 0) -> PolicyProblem:
        """Return a problem at an offset in the text."""
        line, column = self.position(offset)
        return PolicyProblem(self.file, line, column, what, remedy)


def position(text: str, offset: int) -> tuple[int, int]:
    """Return line and column of an offset in a text, both counted from 1."""
    before = text[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1


def split(text: str, file: str) -> list[Policy]:
    """Return the policies of a text, in order. Text after the last semicolon counts as one too."""
    policies: list[Policy] = []
    tokens: list[PolicyToken] = []
    for token in tokenise(text):
        tokens.append(token)
        if token.text == ";":
            policies.append(_policy(text, tokens, file))
            tokens = []
    if tokens:
        policies.append(_policy(text, tokens, file))
    return policies


def tokenise(text: str) -> Iterator[PolicyToken]:
    """Yield the words and signs. Any other character is yielded by itself."""
    offset = 0
    while offset < len(text):
        match = _TOKEN.match(text, offset)
        if match is None:
            yield PolicyToken(text[offset], offset)
            offset += 1
            continue
        if match.lastgroup != "space":
            yield PolicyToken(match[0], offset)
        offset = match.end()


def locate(text: str, message: str, *, parse: Callable[[str], str]) -> int:
    """Return the offset of the error in a policy's text that the engine reports.

    `parse` returns the engine's error for a text, or nothing if it is valid.
    """
    tokens = list(tokenise(text))
    if not tokens:
        return 0
    if message == "unexpected end of input":
        return tokens[-1].start
    if message == "invalid token":
        return next((token.start for token in tokens if _TOKEN.match(token.text) is None), tokens[0].start)
    names = [next(filter(None, groups)) for groups in _NAMED.findall(message)]
    if message.startswith("unexpected token") and names:
        return _unexpected(text, [token for token in tokens if token.text == names[0]], message, parse)
    return next((index for name in names if (index := _find(text, tokens, name)) is not None), tokens[0].start)


def too_deep(text: str, *, maximum: int) -> int | None:
    """Return the offset where the brackets are nested deeper than allowed, None if they never are."""
    depth = 0
    for token in tokenise(text):
        depth += (token.text in ("(", "[", "{")) - (token.text in (")", "]", "}"))
        if depth > maximum:
            return token.start
    return None


def old_names(policies: Iterable[Policy]) -> Iterator[PolicyProblem]:
    """Yield the uses of attributes that were renamed. With `has`, the engine takes an unknown one for absent."""
    for policy in policies:
        before = ""
        for token in tokenise(policy.text):
            name = token.text.strip('"')
            if name in RENAMED_ATTRIBUTES and before in (".", "[", "has"):
                new = RENAMED_ATTRIBUTES[name]
                what = f"context.{name} was renamed to context.{new}."
                yield policy.problem(what, f"Write {new} instead.", offset=token.start)
            before = token.text


def permits_by_words(policies: Iterable[Policy]) -> Iterator[PolicyProblem]:
    """Yield the policies that permit a command by some of its words: options can make it run other programs."""
    for policy in policies:
        tokens = list(tokenise(policy.text)) if policy.permits else []
        texts = [token.text for token in tokens]
        if "".join(texts).find('action==Action::"ask"') >= 0:
            continue
        for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
            name = token.text.strip('"')
            if before.text in (".", "[") and (name in _WORDS or (name == "command" and after.text == "like")):
                what = f"This permits commands by context.{name}."
                yield policy.problem(what, _PERMIT_EXACTLY, offset=token.start)
                break


def unquote(literal: str) -> str:
    """Return the value of a string literal of the policy language."""

    def plain(match: re.Match[str]) -> str:
        if match[1]:
            code = int(match[1], 16)
            return chr(code) if code < 0x110000 else ""
        return _ESCAPES.get(match[2], match[2] or "")

    return _ESCAPE.sub(plain, literal[1:-1])


def _unexpected(text: str, tokens: list[PolicyToken], message: str, parse: Callable[[str], str]) -> int:
    """Find which of several equal tokens is meant.

    If a token before the error, or the token itself, is replaced by an invalid one, the engine reports that one; after
    the error it does not. So the last token whose replacement changes the report is the one.
    """
    index = tokens[0].start if tokens else 0
    for token in tokens:
        if parse(text[: token.start] + _MISFIT + text[token.start + len(token.text) :]) == message:
            break
        index = token.start
    return index


def _find(text: str, tokens: list[PolicyToken], name: str) -> int | None:
    """Return the offset of a name, ignoring comments."""
    return next((token.start for token in tokens if text.startswith(name, token.start)), None)


def _policy(text: str, tokens: list[PolicyToken], file: str) -> Policy:
    start, end = tokens[0].start, tokens[-1].start + len(tokens[-1].text)
    line, column = position(text, start)
    notes, after = _annotations(tokens)
    permits = tokens[min(after, len(tokens) - 1)].text == "permit"
    return Policy(notes.get("id", ""), text[start:end], notes.get("reason", ""), permits, file, line, column)


def _annotations(tokens: list[PolicyToken]) -> tuple[dict[str, str], int]:
    """Return the annotations before the policy, `@name("text")` or `@name`, and where the policy itself begins."""
    notes: dict[str, str] = {}
    index = 0
    while index + 4 < len(tokens) and tokens[index].text == "@":
        if tokens[index + 2].text != "(":
            # An annotation without a text is meaningful by its name alone.
            index += 2
            continue
        literal = tokens[index + 3].text
        if literal.startswith('"'):
            notes.setdefault(tokens[index + 1].text, unquote(literal))
        index += 5
    return notes, index
