"""The intents that the built-in helper understands."""

from dataclasses import dataclass
from enum import StrEnum

from palyra.core.tool import JsonObject


class Topic(StrEnum):
    """The topics with fixed answers."""

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
    """Which part of the conversation a question is about."""

    FIRST = "first"
    LAST = "last"
    ALL = "all"
    COUNT = "count"
    MENTION = "mention"
    NAME = "name"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class Say:
    """Give a fixed answer."""

    topic: Topic


@dataclass(frozen=True, slots=True)
class Use:
    """Call a tool. `beyond` means that the request exceeds what the tool and the helper can do, such as a summary."""

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
    """Evaluate a calculation."""

    expression: str


Intent = Say | Use | Recall | Meet | Calculate
