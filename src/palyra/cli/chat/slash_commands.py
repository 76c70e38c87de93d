"""The slash commands of the chat."""

import difflib
from dataclasses import dataclass

HELP = {
    "/help": "show this help",
    "/new": "start a new session and archive the current one",
    "/sessions": "list sessions; `/sessions 2` continues the second one",
    "/model": "show which model answers",
    "/allow": "approve the pending call; `/allow session`, `/allow 30m` and `/allow always` also cover later calls",
    "/deny": "deny the pending call; the text after it is sent to the agent as the reason",
    "/cancel": "cancel the active run",
    "/stop": "same as /cancel; `/stop all` stops all of your work until `/resume`",
    "/resume": "resume work after `/stop all`",
    "/quit": "quit; the daemon keeps running",
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
            "  Enter sends. Alt-Enter, or a backslash before Enter, starts a new line.",
            "  A message sent while a run is active is added to that run.",
            "  Ctrl-C cancels the active run; press twice to quit. Ctrl-D quits.",
        ]
    else:
        keys = [
            "  Enter sends. A backslash before Enter starts a new line.",
            "  This terminal has no cursor control: type the next message after the answer.",
            "  Ctrl-C cancels the active run; press twice to quit. Ctrl-D quits.",
        ]
    return lines + keys


def unknown(slash: SlashCommand) -> str:
    """Return a hint for a command that does not exist."""
    close = difflib.get_close_matches(slash.name, HELP, n=1)
    meant = f"Did you mean {close[0]}?" if close else "List commands with /help."
    return f"Unknown command {slash.name}. {meant} To send a message that starts with a slash, put a space before it."
