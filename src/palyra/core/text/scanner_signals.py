"""The signals that scanners report, by the names that the tape and policies use."""

from collections.abc import Collection

INSTRUCTIONS = "instructions"
"""Words that tell an agent to ignore its instructions."""
MARKUP = "markup"
"""The marks with which models delimit turns and tool calls."""
HIDDEN = "hidden"
"""Characters or styles that a person does not see."""
ENCODED = "encoded"
"""Any of these in Base64, hexadecimal or invisible letters."""
SECRET = "secret"
"""Something that looks like a key, a token or a password."""

MEANINGS = {
    INSTRUCTIONS: "text that looks like instructions to the agent",
    MARKUP: "text that looks like a turn of the conversation or a tool call",
    HIDDEN: "text that is invisible to people",
    ENCODED: "encoded instructions to the agent",
    SECRET: "text that looks like a secret",
}


def sort_signals(signals: Collection[str]) -> tuple[str, ...]:
    """Return signals in their fixed order."""
    return tuple(name for name in MEANINGS if name in signals)


def describe_signals(signals: tuple[str, ...]) -> str:
    """Return the signals as the end of a sentence; an unknown signal appears by its name."""
    named = [MEANINGS.get(name, name) for name in signals]
    return f"{', '.join(named[:-1])} and {named[-1]}" if len(named) > 1 else "".join(named)
