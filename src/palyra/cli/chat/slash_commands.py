"""The slash commands of the chat."""

import difflib
from dataclasses import dataclass

HELP = {
    "/help": "this list",
    "/new": "begin a new conversation; the present one is put away",
    "/sessions": "list conversations; `/sessions 2` goes on with the second",
    "/model": "which model answers",
    "/allow": "answer yes to the open question; `/allow session`, `/allow 30m` or `/allow always` last longer",
    "/deny": "answer no; what stands behind it is told to the agent",
    "/cancel": "stop the run under way",
    "/stop": "the same; `/stop all` stops all of your work, until `/resume`",
    "/resume": "let your work go on",
    "/quit": "leave; the daemon goes on",
}


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """A command and its argument."""

    name: str
    argument: str


def parse(text: str) -> SlashCommand | None:
    """Return the slash command in the text, or None if it is a message."""
    if not text.startswith("/"):
        return None
    name, _, argument = text.strip().partition(" ")
    return SlashCommand(name, argument.strip())


def help_lines(*, typing_along: bool) -> list[str]:
    """Return the help on slash commands and keys."""
    lines = [f"  {name.ljust(10)} {what}" for name, what in HELP.items()]
    if typing_along:
        keys = [
            "  Enter sends; Alt-Enter, or a backslash before Enter, begins a further line.",
            "  What you send while an answer is being written joins that run.",
            "  Ctrl-C cancels the run under way, and leaves at the second time. Ctrl-D leaves.",
        ]
    else:
        keys = [
            "  Enter sends; a backslash before Enter begins a further line.",
            "  This terminal is a plain one: the next message can be typed when the answer is there.",
            "  Ctrl-C cancels the run under way, and leaves at the second time. Ctrl-D leaves.",
        ]
    return lines + keys


def unknown(slash: SlashCommand) -> str:
    """Return a hint for a command that does not exist."""
    close = difflib.get_close_matches(slash.name, HELP, n=1)
    meant = f"Did you mean {close[0]}?" if close else "/help lists what there is."
    return f"There is no {slash.name}. {meant} To send a message that begins with a slash, put a space before it."
