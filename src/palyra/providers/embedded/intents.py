"""What a person may want of the built-in helper."""

from dataclasses import dataclass
from enum import StrEnum

from palyra.core.tool import JsonObject


class Topic(StrEnum):
    """What is answered with fixed words."""

    GREETING = "greeting"
    MOOD = "mood"
    THANKS = "thanks"
    FAREWELL = "farewell"
    CONSENT = "consent"
    HELP = "help"
    IDENTITY = "identity"
    MODELS = "models"
    COMMANDS = "commands"
    TOOLS = "tools"
    WRITE = "write"
    REMEMBER = "remember"
    WEB = "web"
    SHELL = "shell"
    PLACE = "place"
    UNKNOWN = "unknown"


class Which(StrEnum):
    """Which part of the conversation is asked about."""

    FIRST = "first"
    LAST = "last"
    ALL = "all"
    COUNT = "count"
    MENTION = "mention"
    NAME = "name"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class Say:
    """Answer with fixed words."""

    topic: Topic


@dataclass(frozen=True, slots=True)
class Use:
    """Call a tool. `beyond` says that more was asked for than the tool and the helper can give, such as a summary."""

    tool: str
    arguments: JsonObject
    beyond: bool = False


@dataclass(frozen=True, slots=True)
class Recall:
    """Answer from the conversation; `text` is what may have been mentioned."""

    which: Which
    text: str = ""


@dataclass(frozen=True, slots=True)
class Meet:
    """The person says their name."""

    name: str


@dataclass(frozen=True, slots=True)
class Calculate:
    """Work out a sum."""

    expression: str


Intent = Say | Use | Recall | Meet | Calculate
