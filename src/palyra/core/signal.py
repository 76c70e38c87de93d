"""What scanners may find in a text, by the names that the tape keeps and policies use."""

from collections.abc import Collection

INSTRUCTIONS = "instructions"
"""Words that tell an agent to act otherwise than it was told."""
MARKUP = "markup"
"""The marks with which models set apart turns and calls of tools."""
HIDDEN = "hidden"
"""Characters or styles that a person does not see."""
ENCODED = "encoded"
"""Any of these in Base64, hexadecimal or invisible letters."""
SECRET = "secret"
"""Something of the shape of a key, a token or a password."""

MEANINGS = {
    INSTRUCTIONS: "what looks like instructions to the agent",
    MARKUP: "marks that look like a turn of the conversation or a call of a tool",
    HIDDEN: "text that a person does not see",
    ENCODED: "instructions to the agent in an encoded form",
    SECRET: "what looks like a secret",
}


def in_order(signals: Collection[str]) -> tuple[str, ...]:
    """Return signals in their fixed order."""
    return tuple(name for name in MEANINGS if name in signals)


def told(signals: tuple[str, ...]) -> str:
    """Return the signals as the end of a sentence; what is not known is named as it is."""
    named = [MEANINGS.get(name, name) for name in signals]
    return f"{', '.join(named[:-1])} and {named[-1]}" if len(named) > 1 else "".join(named)
