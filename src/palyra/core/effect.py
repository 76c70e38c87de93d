"""What a call would do if it ran: for the policy as facts, for a person in words."""

import json

from msgspec import Struct

from palyra.core.tool import Access, Risk

_EXACT, _PATTERN = "command", "pattern"


class Effect(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The exact effect of one call, worked out from its arguments before anything happens.

    The texts are shown to a person who must decide: they hold the whole command, the whole diff, the method and the
    URL. Parts that others wrote are escaped (`core/display.py`), so that none hides, breaks a line or reads like one of
    ours. The facts are what policies speak about; they stay as they are.
    """

    risk: Risk
    summary: str
    """One line: `write notes.txt (3 lines, new)`, `run git push origin main`."""
    detail: str = ""
    """All of it, as long as it is: a diff, a command line, a request."""
    paths: tuple[str, ...] = ()
    """Absolute paths that are read or written."""
    hosts: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()
    """The names of the secrets that are sent along."""
    command: str = ""
    """The whole command line, if one is run."""
    access: Access | None = None
    """What the command may do, as far as the sandbox enforces it: with `read` nothing outside its sandbox changes."""
    carries_secret: bool = False
    """Something that looks like a secret would leave with it. The detail says where, and shows it."""
    kind: str = ""
    """The class of the arguments, to which an answer that lasts is bound: `folder:/home/ana/notes`, `host:example.org`,
    `command in "/home/ana" (write): git push`. Empty if no class is narrower than the tool; then an answer lasts for
    this very call only."""


def class_of_command(command: str, *, folder: str, access: Access) -> str:
    """Return the class of one exact command in one folder. What stands before the command can be told from it."""
    return f"{_EXACT} in {json.dumps(folder, ensure_ascii=False)} ({access}): {command}"


def class_of_pattern(effect: Effect, pattern: str) -> str:
    """Return the class of all commands that fit a pattern, in the folder and with the access of a call."""
    return f"{_PATTERN}{_place_of(effect)}{pattern}"


def pattern_for(effect: Effect, kind: str) -> str:
    """Return the pattern of a class that may hold the command of a call; nothing if it is another class."""
    place = f"{_PATTERN}{_place_of(effect)}"
    return kind.removeprefix(place) if effect.kind.startswith(f"{_EXACT} in ") and kind.startswith(place) else ""


def _place_of(effect: Effect) -> str:
    """Return what the class of a call says of its folder and access."""
    return effect.kind.removesuffix(effect.command).removeprefix(_EXACT)
