"""Patterns with which a person allows more than one exact command.

A pattern is written as words, split as a shell splits them. `*` matches any part of one argument, and `**` as the last
word any further arguments. A word that begins with `*` does not match an argument that begins with `-`: options are
written out, or left to `**`. A pattern covers only lines that are one simple command.
"""

import re
import shlex

from palyra.core.errors import Invalid
from palyra.core.policy.effect import MAX_PATTERN_CHARS, Effect, class_of_pattern, pattern_for
from palyra.core.tool import FolderAccess
from palyra.policy.risk import INTERPRETERS
from palyra.policy.shell_commands import Words, base, simple

_REST = "**"
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class CommandPatternInvalid(Invalid):
    """This pattern cannot be used. Allow the exact command, or write another pattern."""


def check_pattern(pattern: str, effect: Effect) -> None:
    """Raise `CommandPatternInvalid` unless a pattern can be allowed in answer to this call."""
    words = _words(pattern)
    if effect.access is not FolderAccess.WRITE or not pattern_for(effect, class_of_pattern(effect, pattern)):
        raise CommandPatternInvalid("A pattern can only be allowed for a command with access write.")
    arguments = simple(effect.command)
    if arguments is None:
        raise CommandPatternInvalid(
            "A pattern covers one simple command only, and this command line is more than that."
        )
    if not _fits(words, arguments):
        raise CommandPatternInvalid(f"The pattern {pattern!r} does not match this command.")


def covers(kind: str, effect: Effect) -> bool:
    """Return whether a class covers a call: it is the call's own class, or a pattern that its command matches."""
    if not effect.kind:
        return False
    if kind == effect.kind:
        return True
    pattern = pattern_for(effect, kind) if effect.access is FolderAccess.WRITE else ""
    arguments = simple(effect.command) if pattern else None
    try:
        return arguments is not None and _fits(_words(pattern), arguments)
    except CommandPatternInvalid:
        return False  # an earlier release accepted it


def _words(pattern: str) -> Words:
    """Return the words of a pattern; raise `CommandPatternInvalid` if it is not one, or would match everything."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise CommandPatternInvalid(f"The pattern is too long: at most {MAX_PATTERN_CHARS} characters.")
    if _UNPRINTABLE.search(pattern):
        raise CommandPatternInvalid("The pattern must be one line of printable characters.")
    try:
        words = tuple(shlex.split(pattern))
    except ValueError as error:
        raise CommandPatternInvalid(f"The pattern cannot be split into words: {error}.") from error
    if not words or "*" in words[0]:
        raise CommandPatternInvalid(
            "The pattern must begin with the name of a program, without *: it would match everything."
        )
    if any(_REST in word for word in words[:-1]) or (_REST in words[-1] and words[-1] != _REST):
        raise CommandPatternInvalid("** matches any further arguments, and must be the last word.")
    if base(words) in INTERPRETERS and words[1:2] and "*" in words[1]:
        raise CommandPatternInvalid(
            f"{words[0]} runs any program that its first argument names. Write that argument out."
        )
    return words


def _fits(pattern: Words, arguments: Words) -> bool:
    named = pattern[:-1] if pattern[-1] == _REST else pattern
    if len(arguments) < len(named) or (len(arguments) > len(named) and named is pattern):
        return False
    return all(_word_fits(word, argument) for word, argument in zip(named, arguments, strict=False))


def _word_fits(word: str, argument: str) -> bool:
    if word[:1] == "*" and argument[:1] == "-":
        return False
    first, *parts = word.split("*")
    if not parts:
        return word == argument
    if not argument.startswith(first):
        return False
    at = len(first)
    for part in parts[:-1]:
        count = argument.find(part, at)
        if count < 0:
            return False
        at = count + len(part)
    return argument.endswith(parts[-1]) and len(argument) - len(parts[-1]) >= at
