"""Splits a command line into words and operators, where the shell itself would split it.

A split in another position would bypass every rule about commands: what a rule takes for one quoted word may be a
comment and a command to the shell. So quotes, comments, continued lines, substitutions and here-documents are read as
bash reads them. What the shell would compute at run time is left as it is written, and marked as not certain.
"""

import re
from dataclasses import dataclass, field

MAX_NESTING = 40
"""The maximum nesting of substitutions; deeper ones are not parsed, and the line is marked as incomplete."""
_ORDINARY = re.compile(r"[^ \t\n\\'\"$`;&|<>()]+")
_IN_DOUBLE = re.compile(r"[^\\\"$`]+")
_SIGN = re.compile(r";;&|;;|;&|&&|\|\||\|&|&>>|&>|<<<|<<-|<<|<>|<&|>>|>&|>\||[;&|<>()\n]")
_GROWS = re.compile(r"[*?]|\[.*\]|\{.*[,.].*\}", re.DOTALL)
"""Characters with which the shell expands one word into others."""
_ASSIGNS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\[[^\]]*\])?\+?=")
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{1,2})|([0-7]{1,3})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v"}


@dataclass(frozen=True, slots=True)
class LexedPart:
    """A word, or an operator between words."""

    text: str
    is_sign: bool = False
    is_certain: bool = True
    """It is literal: the shell does not replace it."""
    assigns: bool = False
    """It sets a variable if it comes before a command: nothing of the name is quoted."""


@dataclass(slots=True)
class LexedLine:
    """A command line, split into parts."""

    parts: list[LexedPart] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    """The substitutions: commands whose output becomes part of the line."""
    bodies: list[str] = field(default_factory=list)
    """Texts that programs get as their input, which a shell would run."""
    is_complete: bool = True
    """Every quote and every bracket is closed."""


def lex(text: str) -> LexedLine:
    """Split a command line into its parts."""
    return _Lexer(text).run()


class _Lexer:
    """Reads a line from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._cut = LexedLine()
        self._ends: list[tuple[str, bool, bool]] = []
        """For each pending here-document: its last line, whether tabs are stripped, and whether it is literal."""

    def run(self) -> LexedLine:
        """Split the whole line."""
        while self._at < len(self._text):
            char = self._text[self._at]
            if char in " \t":
                self._at += 1
            elif char == "#":
                self._at = _end_of_line(self._text, self._at)
            elif char in ";&|<>()\n" and self._text[self._at : self._at + 2] not in ("<(", ">("):
                self._sign()
            else:
                self._word()
        return self._cut

    def _sign(self) -> None:
        match = _SIGN.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        self._cut.parts.append(LexedPart(match[0], is_sign=True))
        if match[0] in ("<<", "<<-"):
            self._await_body(strip=match[0] == "<<-")
        elif match[0] == "\n":
            self._bodies()

    def _word(self) -> None:
        start = self._at
        texts: list[str] = []
        certain = True
        while self._at < len(self._text) and self._text[self._at] not in " \t\n;&|()":
            char = self._text[self._at]
            if char in "<>":
                if self._text[self._at : self._at + 2] not in ("<(", ">("):
                    break
                texts.append(self._substituted())
                certain = False
            elif match := _ORDINARY.match(self._text, self._at):
                texts.append(match[0])
                self._at = match.end()
            else:
                piece, fixed = self._quoted(char)
                texts.append(piece)
                certain = certain and fixed
        full_text = "".join(texts)
        certain = certain and not _GROWS.search(full_text)
        is_number = self._text[start : self._at].isdigit() and self._text[self._at : self._at + 1] in ("<", ">")
        # A number right before a redirection belongs to it; and a continued line may have been empty.
        if not is_number and (full_text or self._text[start : self._at] != "\\\n"):
            assigns = _ASSIGNS.match(self._text, start, self._at) is not None
            self._cut.parts.append(LexedPart(full_text, is_certain=certain, assigns=assigns))

    def _quoted(self, char: str) -> tuple[str, bool]:
        """Return the text at a quoting character, and whether it is certain."""
        if char == "\\":
            self._at += 2
            escaped = self._text[self._at - 1 : self._at]
            return ("", False) if escaped == "\n" else (escaped or char, True)
        if char == "'":
            return self._until("'"), True
        if char == '"':
            self._at += 1
            return self._double()
        if char == "`":
            return self._backquoted(), False
        return self._dollar(in_double=False), False

    def _until(self, sign: str) -> str:
        end = self._text.find(sign, self._at + 1)
        self._cut.is_complete = self._cut.is_complete and end >= 0
        match = self._text[self._at + 1 : end if end >= 0 else len(self._text)]
        self._at = end + 1 if end >= 0 else len(self._text)
        return match

    def scripts(self) -> list[str]:
        """Return the commands within a text in which the shell only expands substitutions."""
        while self._at < len(self._text):
            self._double()
        return self._cut.scripts

    def _double(self) -> tuple[str, bool]:
        """Return the text up to the next double quote."""
        texts: list[str] = []
        certain = True
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == '"':
                self._at += 1
                return "".join(texts), certain
            if match := _IN_DOUBLE.match(self._text, self._at):
                texts.append(match[0])
                self._at = match.end()
            elif char == "\\":
                escaped = self._text[self._at + 1 : self._at + 2]
                texts.append("" if escaped == "\n" else escaped if escaped in '$`"\\' else char + escaped)
                self._at += 2
            else:
                certain = False
                texts.append(self._backquoted() if char == "`" else self._dollar(in_double=True))
        self._cut.is_complete = False
        return "".join(texts), certain

    def _dollar(self, *, in_double: bool) -> str:
        following = self._text[self._at + 1 : self._at + 2]
        if following == "(":
            return self._substituted()
        if following == "{":
            return self._substituted("}", in_double=in_double)
        self._at += 1
        if following == "'" and not in_double:
            end = self._close(self._at + 1, "'", escapes=True)
            text = self._text[self._at + 1 : end]
            self._at = end + 1
            return _ESCAPE.sub(_escaped, text)
        if following == '"' and not in_double:
            self._at += 1
            return self._double()[0]
        return "$"

    def _substituted(self, closer: str = ")", *, in_double: bool = False) -> str:
        start = self._at
        end = self._close(start + 2, closer, in_double=in_double)
        inside = self._text[start + 2 : end]
        if closer == ")":
            self._cut.scripts.append(inside)
        elif self._cut.is_complete:
            # A variable may have a substitution in its default value.
            self._cut.scripts += _Lexer(inside).scripts()
        self._at = end + 1
        return self._text[start : self._at]

    def _backquoted(self) -> str:
        start = self._at
        end = self._close(start + 1, "`", escapes=True)
        self._cut.scripts.append(re.sub(r"\\([`\\$])", r"\1", self._text[start + 1 : end]))
        self._at = end + 1
        return self._text[start : self._at]

    def _close(self, at: int, closer: str, *, escapes: bool = False, in_double: bool = False, depth: int = 0) -> int:
        """Return where something that was opened ends; the end of the text if it is not closed.

        With `escapes`, only a backslash has a meaning within it.
        """
        while at < len(self._text) and depth <= MAX_NESTING:
            char = self._text[at]
            if char == closer:
                return at
            if closer == "'" and not escapes:
                at += 1
            elif char == "\\":
                at += 2
            elif escapes:
                at += 1
            elif char == "#" and closer == ")" and self._text[at - 1] in " \t\n;&|(":
                at = _end_of_line(self._text, at)
            else:
                inner, step, raw = _opened(self._text, at, closer, in_double=in_double)
                at += step
                if inner:
                    within = inner == '"' or (inner == "}" and in_double)
                    at = self._close(at, inner, escapes=raw, in_double=within, depth=depth + 1) + 1
        self._cut.is_complete = False
        return len(self._text)

    def _await_body(self, *, strip: bool) -> None:
        """Read the delimiter of a here-document."""
        while self._text[self._at : self._at + 1] in (" ", "\t"):
            self._at += 1
        start, before = self._at, len(self._cut.parts)
        self._word()
        ends = self._cut.parts[before].text if len(self._cut.parts) > before else ""
        del self._cut.parts[before:]
        self._ends.append((ends, strip, ends != self._text[start : self._at]))

    def _bodies(self) -> None:
        """Read the here-documents that begin with this line."""
        for ends, strip, literal in self._ends:
            lines: list[str] = []
            while self._at < len(self._text):
                end = _end_of_line(self._text, self._at)
                line = self._text[self._at : end]
                self._at = min(end + 1, len(self._text))
                if (line.lstrip("\t") if strip else line) == ends:
                    break
                lines.append(line)
            body = "\n".join(lines)
            self._cut.bodies.append(body)
            if not literal:
                self._cut.scripts += _Lexer(body).scripts()
        self._ends = []


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return end if end >= 0 else len(text)


def _opened(text: str, at: int, closer: str, *, in_double: bool) -> tuple[str, int, bool]:
    """Return what closes a construct that begins here, the length of its opening, and if only backslashes count in
    it."""
    char, two = text[at], text[at : at + 2]
    if two == "${":
        return "}", 2, False
    if two == "$(" or (two in ("<(", ">(") and not in_double):
        return ")", 2, False
    if two == "$'" and not in_double:
        return "'", 2, True
    if char in '`"' or (char == "'" and not in_double):
        return char, 1, char == "`"
    return (")", 1, False) if char == "(" and closer == ")" else ("", 1, False)


def _escaped(match: re.Match[str]) -> str:
    code, octal, short, long, char = match.groups()
    if char is not None:
        return _ESCAPES.get(char, char)
    number = int(octal, 8) if octal else int(code or short or long, 16)
    return chr(number) if number < 0x110000 else ""
