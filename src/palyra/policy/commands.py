"""A command line as far as it can be understood without running it.

Two readings are needed. To forbid, everything that might be run counts, also behind `sudo` or inside `sh -c`. To
permit, only a line counts whose arguments are certain: one simple command, in which no shell finds anything to do but
to cut it into words.
"""

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from palyra.policy.lexing import Cut, cut

LONGEST_PREFIX = 8
_DEEPEST = 3
_LONGEST_LINE = 100_000
_FURTHEST = 12
"""So many words behind one that runs others are looked at: options and their values may stand before what is run."""
_MOST_WORDS = 64
"""So many words of a command are looked at that `find` runs."""
_SEPARATORS = frozenset({";", "&&", "||", "|", "|&", "&", "\n"})
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_OPTION = re.compile(r"^(--[\w-]+=|-\w)")
_RAW = re.compile(r"[;&|\n(){}`]")
_SIMPLE = re.compile(r"""([A-Za-z0-9_./:@%+,= -]|'[^'\x00-\x1f\x7f]*'|"[^"$`\\!\x00-\x1f\x7f]*")+""")
"""Characters that no shell does anything with, and quotes in which none does."""
_SHELLS = frozenset({"sh", "bash", "rbash", "dash", "zsh", "ksh", "mksh", "fish", "ash"})
_CARRIERS = frozenset(
    "sudo doas su runuser setpriv pkexec env nohup nice ionice chrt taskset time timeout stdbuf setsid chroot xargs"
    " parallel flock script command exec builtin busybox toybox watch entr strace ltrace valgrind gdb unshare nsenter"
    " systemd-run fakeroot xvfb-run trap coproc function if then else elif while until do ! {".split()
)
"""Programs and words of the shell behind which another program is named."""
_RUNNING = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
"""What stands before a command in the arguments of `find`."""
_LAUNCHERS = frozenset(
    {("uv", "run"), ("poetry", "run"), ("pipenv", "run"), ("conda", "run"), ("pdm", "run"), ("bundle", "exec")}
)
"""What only sets the place up for the program that is named next."""

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A command line, taken apart."""

    text: str
    commands: tuple[Words, ...]
    """The words of each command as written, and those that are run by way of another."""
    launched: tuple[Words, ...]
    """The words of the programs that are only set up for: `pytest` of `uv run pytest` and of `python -m pytest`."""
    separators: tuple[str, ...]
    """What stands between the commands as written."""
    targets: tuple[str, ...]
    """Where output is redirected to."""
    sources: tuple[str, ...]
    """Where input is redirected from."""
    assigned: tuple[str, ...]
    """What is set for a command: `PATH=/tmp`."""
    is_plain: bool
    """Nothing stands in it that only a shell could tell the meaning of."""
    is_named: bool
    """Every program is named as it is, and not put together by the shell."""
    is_whole: bool
    """All of it could be read: it is not too long, and every quote has its end."""


def read(text: str) -> Line:
    """Take a command line apart."""
    return _read(text, 0)


def any_prefix(line: Line) -> set[str]:
    """Return the first words of every command that might be run: `git`, `git push`, `git push origin`."""
    found: set[str] = set()
    for words in dict.fromkeys((*line.commands, *line.launched)):
        found.update(_prefixes(words))
        if (name := program(words)) not in words[:1]:
            found.update(_prefixes((name, *words[1:])))
    return found


def simple(text: str) -> Words | None:
    """Return the arguments of a line that is one simple command; None if it is more, or a shell might change them."""
    line = read(text)
    if not (line.is_plain and len(line.commands) == 1 and not line.separators and _SIMPLE.fullmatch(text)):
        return None
    return line.commands[0]


def program(words: Words) -> str:
    """Return the name of the program that a command starts, without its folder."""
    return words[0].rpartition("/")[2] if words else ""


def base(words: Words) -> str:
    """Return the name of the program without its version: `python` for `/usr/bin/python3.11`."""
    name = program(words)
    return name.rstrip("0123456789.-") or name


def launched(words: Words) -> Words:
    """Return the words of the program that a command only sets the place up for, none if it does something itself."""
    if (program(words), *words[1:2]) in _LAUNCHERS or (base(words) in ("python", "pypy") and words[1:2] == ("-m",)):
        return words[2:]
    return ()


def _prefixes(words: Words) -> Iterator[str]:
    quoted = [shlex.quote(word) for word in words[:LONGEST_PREFIX]]
    for end in range(1, len(quoted) + 1):
        yield " ".join(quoted[:end])


# Kept, since the same text is read for the risk, for the class and for the policies; and a line may name it often.
@lru_cache(maxsize=256)
def _read(text: str, depth: int) -> Line:
    found = cut(text[:_LONGEST_LINE])
    written = _Written(found)
    commands = written.commands
    begun = (*commands, *written.behind)
    inner = written.behind + [
        one for words in begun for start in (words, *_launched(words)) for one in _carried(start, depth)
    ]
    for script in (*found.scripts, *found.bodies, *written.given):
        if depth < _DEEPEST:
            inner += _commands_of(script, depth + 1)
    whole = found.is_whole and len(text) <= _LONGEST_LINE
    if not whole or any("<<" in script for script in found.scripts):
        # Where it is not certain where a quote ends, nothing hides in one.
        inner += _raw(text[:_LONGEST_LINE])
    plain = whole and written.is_plain and not inner and not any(sign in text for sign in ("$", "`", "\\\n"))
    return Line(
        text=text,
        commands=tuple(dict.fromkeys((*commands, *inner))) if inner else tuple(commands),
        launched=tuple(one for words in (*commands, *inner) for one in _launched(words)),
        separators=tuple(written.separators),
        targets=tuple(written.targets),
        sources=tuple(written.sources),
        assigned=tuple(written.assigned),
        is_plain=plain and bool(commands),
        is_named=written.is_named,
        is_whole=whole,
    )


class _Written:
    """The commands of a line as they are written, and what stands around them."""

    def __init__(self, found: Cut) -> None:
        self.commands: list[Words] = []
        self.separators: list[str] = []
        self.targets: list[str] = []
        self.sources: list[str] = []
        self.assigned: list[str] = []
        self.given: list[str] = []
        """Texts that a program gets as its input."""
        self.behind: list[Words] = []
        """Commands behind words of which nothing may be left."""
        self.is_plain = True
        self.is_named = True
        self._words: list[str] = []
        self._vague = 0
        """How many words there are so far, if none of them is certain."""
        redirection = ""
        for part in found.parts:
            if part.is_sign:
                redirection = self._sign(part.text)
            elif redirection:
                self._redirect(redirection, part.text)
                redirection = ""
            elif not self._words and part.assigns:
                self.assigned.append(part.text)
                self.is_plain = False
            else:
                if len(self._words) == self._vague and not part.is_certain:
                    self.is_named = self.is_plain = False
                    self._vague += 1
                self._words.append(part.text)
        self._end()

    def _sign(self, sign: str) -> str:
        """Return the sign if the next word belongs to it."""
        if sign in _SEPARATORS:
            self.separators.append(sign)
            self._end()
            return ""
        self.is_plain = False
        # Some shells take the first sign of `&>` for the end of the command.
        if sign[0] in "();" or sign.startswith("&>"):
            self._end()
        return sign if ("<" in sign or ">" in sign) and not sign.startswith("<<-") and sign != "<<" else ""

    def _redirect(self, sign: str, word: str) -> None:
        if sign == "<<<":
            self.given.append(word)
        else:
            (self.targets if ">" in sign else self.sources).append(word)

    def _end(self) -> None:
        if self._words:
            self.commands.append(tuple(self._words))
        if self._vague and self._words[self._vague :]:
            self.behind.append(tuple(self._words[self._vague :]))
        self._words, self._vague = [], 0


def _commands_of(script: str, depth: int) -> Iterable[Words]:
    return _read(script, depth).commands


def _launched(words: Words) -> Iterator[Words]:
    """Yield what a command launches, and what that launches in turn."""
    for _ in range(_DEEPEST):
        if not (words := launched(words)):
            return
        yield words


def _raw(text: str) -> Iterator[Words]:
    """Yield everything that might be a command if no quote meant anything."""
    for piece in _RAW.split(text):
        if words := tuple(word for part in piece.split() if (word := part.strip("'\"\\$"))):
            yield words


def _carried(words: Words, depth: int) -> Iterator[Words]:
    """Yield the commands that a command runs by way of its arguments."""
    if depth >= _DEEPEST:
        return
    name = program(words)
    if name == "eval":
        yield from _commands_of(" ".join(words[1:]), depth + 1)
    elif name in _SHELLS:
        for place, word in enumerate(words[1:], start=1):
            if re.match(r"-[A-Za-z]*c", word):
                script = next((one for one in words[place + 1 :] if one[:1] not in ("-", "+")), "")
                yield from _commands_of(script, depth + 1)
                return
    elif name == "find":
        for start in (place + 1 for place, word in enumerate(words[:-1]) if word in _RUNNING):
            run = words[start : start + _MOST_WORDS]
            yield run
            if program(run) != name:
                # What another `find` runs is looked at here anyway.
                yield from _carried(run, depth + 1)
    elif name in _CARRIERS:
        # Which options take a value is not known for each: every rest might be what is run.
        for start, word in enumerate(words[1 : 1 + _FURTHEST], start=1):
            if any(sign in word for sign in " \t\n;|&"):
                yield from _commands_of(_OPTION.sub("", word), depth + 1)
            elif word[:1] != "-" and not _ASSIGNMENT.match(word):
                yield words[start:]
                if program(words[start:]) not in _CARRIERS:
                    # What stands behind another of these is looked at anyway.
                    yield from _carried(words[start:], depth + 1)
