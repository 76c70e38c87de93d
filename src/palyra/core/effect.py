"""What a call would do if it ran: for the policy as facts, for a person in words."""

from msgspec import Struct

from palyra.core.tool import Risk


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
    carries_secret: bool = False
    """Something that looks like a secret would leave with it. The detail says where, and shows it."""
    kind: str = ""
    """The class of the arguments, to which an answer that lasts is bound: `folder:/home/ana/notes`, `host:example.org`,
    `command:git push`. Empty if no class is narrower than the tool; then an answer lasts for this very call only."""
