"""Parses a command line as far as it can be understood without running it.

Two readings are needed. To forbid, everything that might be run counts, also after `sudo` or inside `sh -c`. To permit,
only a line with certain arguments counts: one simple command, which a shell only splits into words.
"""

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from palyra.policy.shell_lexer import LexedLine, lex

MAX_PREFIX_WORDS = 8
_MAX_NESTED_COMMANDS = 3
_MAX_LINE_CHARS = 100_000
_MAX_LAUNCHER_WORDS = 12
"""How many words after a launcher are checked: options and their values may come before the program."""
_MAX_WORDS = 64
"""How many words of a command that `find` runs are checked."""
_SEPARATORS = frozenset({";", "&&", "||", "|", "|&", "&", "\n"})
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_OPTION = re.compile(r"^(--[\w-]+=|-\w)")
_RAW = re.compile(r"[;&|\n(){}`]")
_SIMPLE = re.compile(r"""([A-Za-z0-9_./:@%+,= -]|'[^'\x00-\x1f\x7f]*'|"[^"$`\\!\x00-\x1f\x7f]*")+""")
"""Characters without a meaning to any shell, and quotes with only such characters."""
_SHELLS = frozenset({"sh", "bash", "rbash", "dash", "zsh", "ksh", "mksh", "fish", "ash"})
_LAUNCHER_PROGRAMS = frozenset(
    "sudo doas su runuser setpriv pkexec env nohup nice ionice chrt taskset time timeout stdbuf setsid chroot xargs"
    " parallel flock script command exec builtin busybox toybox watch entr strace ltrace valgrind gdb unshare nsenter"
    " systemd-run fakeroot xvfb-run trap coproc function if then else elif while until do ! {".split()
)
"""Programs and shell keywords that are followed by another program."""
_RUNNING = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
"""What precedes a command in the arguments of `find`."""
_LAUNCHERS = frozenset(
    {("uv", "run"), ("poetry", "run"), ("pipenv", "run"), ("conda", "run"), ("pdm", "run"), ("bundle", "exec")}
)
"""Programs that only prepare the environment of the program that follows."""

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A parsed command line."""

    text: str
    commands: tuple[Words, ...]
    """The words of each command as written, and of those that are run through another."""
    launched: tuple[Words, ...]
    """The words of the programs that others only prepare: `pytest` of `uv run pytest` and of `python -m pytest`."""
    separators: tuple[str, ...]
    """The operators between the commands as written."""
    targets: tuple[str, ...]
    """Where output is redirected to."""
    sources: tuple[str, ...]
    """Where input is redirected from."""
    assigned: tuple[str, ...]
    """The variables set for a command: `PATH=/tmp`."""
    is_plain: bool
    """It contains nothing that only a shell could interpret."""
    is_named: bool
    """Every program is named literally, and not computed by the shell."""
    is_complete: bool
    """All of it was parsed: it is not too long, and every quote is closed."""


def parse_command_line(text: str) -> CommandLine:
    """Parse a command line."""
    return _read(text, 0)


def any_prefix(line: CommandLine) -> set[str]:
    """Return the first words of every command that might be run: `git`, `git push`, `git push origin`."""
    matches: set[str] = set()
    for words in dict.fromkeys((*line.commands, *line.launched)):
        matches.update(_prefixes(words))
        if (name := program(words)) not in words[:1]:
            matches.update(_prefixes((name, *words[1:])))
    return matches


def simple(text: str) -> Words | None:
    """Return the arguments of a line that is one simple command; None if it is more, or a shell might change them."""
    line = parse_command_line(text)
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
    """Return the words of the program that a command only prepares, empty if it does something itself."""
    if (program(words), *words[1:2]) in _LAUNCHERS or (base(words) in ("python", "pypy") and words[1:2] == ("-m",)):
        return words[2:]
    return ()


def _prefixes(words: Words) -> Iterator[str]:
    quoted = [shlex.quote(word) for word in words[:MAX_PREFIX_WORDS]]
    for end in range(1, len(quoted) + 1):
        yield " ".join(quoted[:end])


# Cached, since the same text is parsed for the risk, for the class and for the policies; and a line may repeat it.
@lru_cache(maxsize=256)
def _read(text: str, depth: int) -> CommandLine:
    lexed_line = lex(text[:_MAX_LINE_CHARS])
    written = _CommandText(lexed_line)
    commands = written.commands
    begun = (*commands, *written.behind)
    inner = written.behind + [
        one for words in begun for start in (words, *_launched(words)) for one in _nested_commands(start, depth)
    ]
    for script in (*lexed_line.scripts, *lexed_line.bodies, *written.given):
        if depth < _MAX_NESTED_COMMANDS:
            inner += _commands_of(script, depth + 1)
    complete = lexed_line.is_complete and len(text) <= _MAX_LINE_CHARS
    if not complete or any("<<" in script for script in lexed_line.scripts):
        # Where the end of a quote is uncertain, quoted text counts as commands too.
        inner += _raw(text[:_MAX_LINE_CHARS])
    plain = complete and written.is_plain and not inner and not any(sign in text for sign in ("$", "`", "\\\n"))
    return CommandLine(
        text=text,
        commands=tuple(dict.fromkeys((*commands, *inner))) if inner else tuple(commands),
        launched=tuple(one for words in (*commands, *inner) for one in _launched(words)),
        separators=tuple(written.separators),
        targets=tuple(written.targets),
        sources=tuple(written.sources),
        assigned=tuple(written.assigned),
        is_plain=plain and bool(commands),
        is_named=written.is_named,
        is_complete=complete,
    )


class _CommandText:
    """The commands of a line as they are written, and what is around them."""

    def __init__(self, lexed_line: LexedLine) -> None:
        self.commands: list[Words] = []
        self.separators: list[str] = []
        self.targets: list[str] = []
        self.sources: list[str] = []
        self.assigned: list[str] = []
        self.given: list[str] = []
        """Texts that a program gets as its input."""
        self.behind: list[Words] = []
        """Commands after words that may expand to nothing."""
        self.is_plain = True
        self.is_named = True
        self._words: list[str] = []
        self._vague = 0
        """The number of words so far, if none of them is certain."""
        redirection = ""
        for part in lexed_line.parts:
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
        """Return the operator if the next word belongs to it."""
        if sign in _SEPARATORS:
            self.separators.append(sign)
            self._end()
            return ""
        self.is_plain = False
        # Some shells treat the first character of `&>` as the end of the command.
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
    for _ in range(_MAX_NESTED_COMMANDS):
        if not (words := launched(words)):
            return
        yield words


def _raw(text: str) -> Iterator[Words]:
    """Yield everything that might be a command if quotes had no meaning."""
    for piece in _RAW.split(text):
        if words := tuple(word for part in piece.split() if (word := part.strip("'\"\\$"))):
            yield words


def _nested_commands(words: Words, depth: int) -> Iterator[Words]:
    """Yield the commands that a command runs through its arguments."""
    if depth >= _MAX_NESTED_COMMANDS:
        return
    name = program(words)
    if name == "eval":
        yield from _commands_of(" ".join(words[1:]), depth + 1)
    elif name in _SHELLS:
        for index, word in enumerate(words[1:], start=1):
            if re.match(r"-[A-Za-z]*c", word):
                script = next((one for one in words[index + 1 :] if one[:1] not in ("-", "+")), "")
                yield from _commands_of(script, depth + 1)
                return
    elif name == "find":
        for start in (index + 1 for index, word in enumerate(words[:-1]) if word in _RUNNING):
            run = words[start : start + _MAX_WORDS]
            yield run
            if program(run) != name:
                # What another `find` runs is checked here anyway.
                yield from _nested_commands(run, depth + 1)
    elif name in _LAUNCHER_PROGRAMS:
        # Which options take a value is not known for each program: every remainder might be the command.
        for start, word in enumerate(words[1 : 1 + _MAX_LAUNCHER_WORDS], start=1):
            if any(sign in word for sign in " \t\n;|&"):
                yield from _commands_of(_OPTION.sub("", word), depth + 1)
            elif word[:1] != "-" and not _ASSIGNMENT.match(word):
                yield words[start:]
                if program(words[start:]) not in _LAUNCHER_PROGRAMS:
                    # What follows another of these is checked anyway.
                    yield from _nested_commands(words[start:], depth + 1)
