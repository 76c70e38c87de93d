"""A command line as far as it can be understood without running it.

Two readings are needed. To forbid, everything that might be run counts, also behind `sudo` or inside `sh -c`. To
permit, only what is certain counts: a line with a substitution, a variable, a redirection or a subshell is not plain,
and no prefix of it permits anything.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

LONGEST_PREFIX = 8
_DEEPEST = 3
_LONGEST_LINE = 100_000
_SEPARATORS = frozenset({";", "&&", "||", "|", "|&", "&", "\n"})
_SIGNS = frozenset("();<>|&\n")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_SUBSTITUTION = re.compile(r"\$\(([^()]*)\)?|`([^`]*)`?")
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "fish", "ash"})
_CARRIERS = frozenset(
    "sudo doas su pkexec env nohup nice ionice time timeout stdbuf setsid chroot xargs command exec builtin busybox"
    " watch strace unshare nsenter if then else elif while until do ! {".split()
)
"""Programs and words of the shell behind which another program is named."""

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A command line, taken apart."""

    text: str
    commands: tuple[Words, ...]
    """The words of each command as written, and those that are run by way of another."""
    separators: tuple[str, ...]
    """What stands between the commands as written."""
    targets: tuple[str, ...]
    """Where output is redirected to."""
    is_plain: bool
    """Nothing stands in it that only a shell could tell the meaning of."""
    is_whole: bool
    """All of it could be read: it is not too long, and every quote has its end."""


@lru_cache(maxsize=256)
def read(text: str) -> Line:
    """Take a command line apart."""
    return _read(text, depth=0)


def any_prefix(line: Line) -> set[str]:
    """Return the first words of every command that might be run: `git`, `git push`, `git push origin`."""
    found: set[str] = set()
    for words in line.commands:
        found.update(_prefixes(words))
        if (name := program(words)) not in words[:1]:
            found.update(_prefixes((name, *words[1:])))
    return found


def common_prefixes(line: Line) -> set[str]:
    """Return the first words that all commands of a plain line share, as written."""
    if not line.is_plain or not line.commands:
        return set()
    return set.intersection(*(set(_prefixes(words)) for words in line.commands))


def program(words: Words) -> str:
    """Return the name of the program that a command starts, without its folder."""
    return words[0].rpartition("/")[2] if words else ""


def _prefixes(words: Words) -> Iterator[str]:
    quoted = [shlex.quote(word) for word in words[:LONGEST_PREFIX]]
    for end in range(1, len(quoted) + 1):
        yield " ".join(quoted[:end])


def _read(text: str, *, depth: int) -> Line:
    if not text.strip():
        return Line(text, (), (), (), False, True)
    try:
        parts = _parts(text)
    except ValueError:
        return Line(text, (tuple(text[:_LONGEST_LINE].split()),), (), (), False, False)
    commands: list[Words] = []
    separators: list[str] = []
    targets: list[str] = []
    words: list[str] = []
    whole = len(text) <= _LONGEST_LINE
    plain = whole and not any(sign in text for sign in ("$", "`", "\\\n"))
    redirect = False
    for part in parts:
        if part in _SEPARATORS:
            separators.append(part)
            commands.append(tuple(words))
            words = []
        elif set(part) <= _SIGNS:
            plain = False
            if "(" in part or ")" in part:
                commands.append(tuple(words))
                words = []
            redirect = ">" in part and "(" not in part
            continue
        elif redirect:
            targets.append(part)
        elif not words and _ASSIGNMENT.match(part):
            plain = False
        else:
            words.append(part)
        redirect = False
    commands.append(tuple(words))
    commands = [command for command in commands if command]
    inner = [found for command in commands for found in _carried(command, depth)]
    inner += [found for script in _substituted(text, depth) for found in _read(script, depth=depth + 1).commands]
    return Line(text, (*commands, *inner), tuple(separators), tuple(targets), plain and not inner, whole)


def _parts(text: str) -> list[str]:
    lexer = shlex.shlex(text[:_LONGEST_LINE], posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = ""
    parts: list[str] = []
    for part in lexer:
        # Signs that follow one another come as one: a newline separates whatever it is next to.
        if "\n" in part and set(part) <= _SIGNS:
            parts.extend(piece for piece in re.split(r"(\n)", part) if piece)
        else:
            parts.append(part)
    return parts


def _substituted(text: str, depth: int) -> Iterator[str]:
    """Yield what the shell would run to put its output into the line, also inside double quotes."""
    if depth < _DEEPEST:
        for match in _SUBSTITUTION.finditer(text[:_LONGEST_LINE]):
            yield match[1] or match[2] or ""


def _carried(words: Words, depth: int) -> Iterator[Words]:
    """Yield the commands that a command runs by way of its arguments."""
    if depth >= _DEEPEST:
        return
    name = program(words)
    if name in _SHELLS or name == "eval":
        for place, word in enumerate(words[1:], start=1):
            if name == "eval" or (word.startswith("-") and "c" in word.lstrip("-")):
                script = " ".join(words[1:]) if name == "eval" else " ".join(words[place + 1 : place + 2])
                yield from _read(script, depth=depth + 1).commands
                return
    if name in _CARRIERS:
        # Which options take a value is not known for each: every rest might be what is run.
        rest = words[1:]
        while rest and (rest[0].startswith("-") or _ASSIGNMENT.match(rest[0])):
            rest = rest[1:]
        for start in range(min(len(rest), 3)):
            yield rest[start:]
            yield from _carried(rest[start:], depth + 1)
