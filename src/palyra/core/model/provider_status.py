"""The status of model providers, and the test call that checks one."""

from enum import StrEnum

from msgspec import Struct

from palyra.core.model.catalog import DialectName, TaskClass
from palyra.core.model.prompt import GenerationOptions
from palyra.core.model.request_options import ClientTool, RequestOptions

TEST_PROMPT = "This is a trial. Say hello in one short sentence."
TEST_MAX_TOKENS = 1024
"""The maximum tokens of the answer to it: a model that reasons first takes a few hundred before it answers."""
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
"""A tool that is offered to check whether a model calls tools. It is never executed: the call ends the test."""


class ToolProbe(StrEnum):
    """What a test call with a tool checks."""

    CALL = "call"
    """Whether the model calls the tool when it is told to."""
    ANSWER = "answer"
    """Whether it does not call the tool when it is only asked to say hello."""


TEXTS: dict[ToolProbe | None, str] = {
    None: TEST_PROMPT,
    ToolProbe.CALL: f"What is the weather in {PROBE_CITY} now? Call the tool {PROBE_TOOL.name} to find out.",
    ToolProbe.ANSWER: TEST_PROMPT,
}


class UnresolvedKey(Struct, frozen=True, kw_only=True):
    """A secret reference of a provider that cannot be resolved."""

    reference: str
    reason: str


class ProviderStatus(Struct, frozen=True, kw_only=True):
    """The status of one configured provider."""

    name: str
    dialect: DialectName | None = None
    """None for built-in providers."""
    where: str = ""
    """Its base URL, or the path of its model file."""
    keys: tuple[str, ...] = ()
    """The references to its keys; the keys themselves are never shown."""
    lost: tuple[UnresolvedKey, ...] = ()
    """Those references that this daemon cannot resolve."""
    model: str = ""
    """The model that is used if only the provider is named."""
    models: tuple[str, ...] = ()
    """The models that the settings name."""
    default: bool = False
    """It is the default provider."""
    fallback: tuple[int, ...] = ()
    """Its positions in the list of fallbacks."""
    retry_in_seconds: float = 0.0
    """How long its circuit breaker stays open, after too many failures."""


def options_for_test(model: str, probe: ToolProbe | None = None) -> RequestOptions:
    """Return the request options of a test call: the model alone, a short answer, and a tool if there is a probe."""
    return RequestOptions(
        model=model,
        plain=True,
        task=TaskClass.AUXILIARY,
        generation=GenerationOptions(max_output_tokens=TEST_MAX_TOKENS),
        tools=(PROBE_TOOL,) if probe is not None else (),
    )
