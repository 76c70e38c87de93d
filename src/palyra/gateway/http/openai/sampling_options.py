"""The sampling options that a caller may set."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from palyra.core.model.prompt import GenerationOptions, ToolChoice
from palyra.gateway.http.openai.errors import ParameterUnsupported

MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_SCHEMA_BYTES = 128 * 1024

Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(ge=0, le=1)]
Tokens = Annotated[int, Meta(ge=1, le=100_000_000)]
Schema = dict[str, Any]

ANY_OBJECT: Schema = {"type": "object"}


def options_of(
    *,
    temperature: float | None,
    top_p: float | None,
    tokens: int | None,
    choice: ToolChoice,
    schema: Schema | None,
    stop: str | list[str] | None = None,
) -> GenerationOptions:
    """Return the sampling options of a request."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS or any(not 1 <= len(one) <= MAX_STOP_CHARS for one in stops):
        raise ParameterUnsupported(
            "stop", f"There may be at most {MAX_STOPS} stop texts, each of 1 to {MAX_STOP_CHARS} characters."
        )
    if schema is not None and len(msgspec.json.encode(schema)) > MAX_SCHEMA_BYTES:
        raise ParameterUnsupported("response_format", "The schema of the answer is larger than 128 KiB.")
    return GenerationOptions(
        max_output_tokens=tokens,
        temperature=temperature,
        top_p=top_p,
        stop=stops,
        choice=choice,
        schema=schema,
    )
