"""How the providers of models stand, and how one is put to the proof."""

from enum import StrEnum

from msgspec import Struct

from palyra.core.brief import Brief, ClientTool
from palyra.core.model import Dialect, TaskClass
from palyra.core.prompt import Options

TRIAL_TEXT = "This is a trial. Say hello in one short sentence."
TRIAL_TOKENS = 1024
"""Of the answer to it, at most: a model that thinks first takes a few hundred before it says a word."""
PROBE_CITY = "Paris"
PROBE_TOOL = ClientTool(
    name="get_weather",
    description="Get the current weather of a city.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string", "description": "The name of the city."}},
        "required": ["city"],
        "additionalProperties": False,
    },
)
"""A tool that is offered to find out whether a model calls tools. Nobody carries it out: the call ends the trial."""


class ToolProbe(StrEnum):
    """What a trial with a tool finds out."""

    CALL = "call"
    """Whether the model calls the tool when it is told to."""
    ANSWER = "answer"
    """Whether it leaves the tool alone when it is only to say hello."""


TEXTS: dict[ToolProbe | None, str] = {
    None: TRIAL_TEXT,
    ToolProbe.CALL: f"What is the weather in {PROBE_CITY} now? Call the tool {PROBE_TOOL.name} to find out.",
    ToolProbe.ANSWER: TRIAL_TEXT,
}


class LostKey(Struct, frozen=True, kw_only=True):
    """A reference of a provider that leads to no secret."""

    reference: str
    reason: str


class ProviderStanding(Struct, frozen=True, kw_only=True):
    """One provider of the settings."""

    name: str
    dialect: Dialect | None = None
    """None for those that are built in."""
    where: str = ""
    """Its address, or its model file."""
    keys: tuple[str, ...] = ()
    """Where its keys stand; the keys themselves are never told."""
    lost: tuple[LostKey, ...] = ()
    """Those of them that lead nowhere, as this daemon sees it."""
    model: str = ""
    """The model that is asked if only the provider is named."""
    models: tuple[str, ...] = ()
    """The models that the settings name."""
    default: bool = False
    """It answers if nothing else is said."""
    fallback: tuple[int, ...] = ()
    """Its places among those that answer when the default can not."""
    rests_seconds: float = 0.0
    """How long it is left alone yet, after it has failed too often."""


def trial_of(model: str, probe: ToolProbe | None = None) -> Brief:
    """Return what a trial of a model asks for: the model alone, and little of it; with a tool if there is a probe."""
    return Brief(
        model=model,
        plain=True,
        task=TaskClass.AUXILIARY,
        options=Options(max_output_tokens=TRIAL_TOKENS),
        tools=(PROBE_TOOL,) if probe is not None else (),
    )
