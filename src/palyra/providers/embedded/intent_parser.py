"""Parses a person's message into an intent."""

from palyra.providers.embedded.arithmetic import read_sum
from palyra.providers.embedded.dictation import read_dictation
from palyra.providers.embedded.intents import Calculate, Intent, Meet, Say, Topic
from palyra.providers.embedded.phrase import readings
from palyra.providers.embedded.tool_requests import read_request
from palyra.providers.embedded.topics import name_in, read_topic


def recognise(message: str) -> Intent:
    """Return what the message asks for, as far as the rules can tell."""
    if (expression := read_sum(message)) is not None:
        return Calculate(expression)
    if (dictated := read_dictation(message)) is not None:
        return dictated
    for phrase in readings(message):
        intent = read_topic(phrase) or read_request(phrase)
        if intent is not None:
            return intent
    if name := name_in(message):
        return Meet(name)
    return Say(Topic.HELP if message.strip(" \t") and not message.strip(" ?") else Topic.UNKNOWN)
