"""Effects: what a call would do if it ran, as facts for the policy and as text for a person."""

import json

from msgspec import Struct

from palyra.core.tool import FolderAccess, Risk

MAX_PATTERN_CHARS = 500
"""The maximum length of a command pattern."""

_EXACT, _PATTERN = "command", "pattern"


class Effect(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The exact effect of one call, computed from its arguments before anything happens.

    The texts are shown to a person who must decide: they contain the full command, the full diff, the method and the
    URL. Parts that others wrote are escaped (`core/text/escaping.py`), so that they cannot hide, break a line or look
    like our own text. The facts are what policies refer to; they are not escaped.
    """

    risk: Risk
    summary: str
    """One line: `write notes.txt (3 lines, new)`, `run git push origin main`."""
    detail: str = ""
    """The full text: a diff, a command line, a request."""
    paths: tuple[str, ...] = ()
    """Absolute paths that are read or written."""
    hosts: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()
    """The names of the secrets that are sent."""
    command: str = ""
    """The full command line, if one is run."""
    access: FolderAccess | None = None
    """What the command may do, as the sandbox enforces it: with `read` nothing outside its sandbox changes."""
    carries_secret: bool = False
    """Something that looks like a secret would leave with the call. The detail says where, and shows it."""
    kind: str = ""
    """The class of the arguments, to which a lasting answer is bound: `folder:/home/ana/notes`, `host:example.org`,
    `command in "/home/ana" (write): git push`. Empty if no class is narrower than the tool; then an answer covers
    exactly this call only."""


def class_of_command(command: str, *, folder: str, access: FolderAccess) -> str:
    """Return the class of one exact command in one folder. The prefix before the command is unambiguous."""
    return f"{_EXACT} in {json.dumps(folder, ensure_ascii=False)} ({access}): {command}"


def class_of_pattern(effect: Effect, pattern: str) -> str:
    """Return the class of all commands that match a pattern, in the folder and with the access of a call."""
    return f"{_PATTERN}{_folder_class(effect)}{pattern}"


def pattern_for(effect: Effect, kind: str) -> str:
    """Return the pattern of a class that may contain the command of a call; empty if it is another class."""
    location = f"{_PATTERN}{_folder_class(effect)}"
    return kind.removeprefix(location) if effect.kind.startswith(f"{_EXACT} in ") and kind.startswith(location) else ""


def _folder_class(effect: Effect) -> str:
    """Return the prefix of a call's class: its folder and access."""
    return effect.kind.removesuffix(effect.command).removeprefix(_EXACT)
