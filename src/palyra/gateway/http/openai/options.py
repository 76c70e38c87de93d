"""How the model should answer, as far as a caller may say."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from palyra.core.prompt import Choice, Options
from palyra.gateway.http.openai.errors import ParameterRefused

MOST_STOPS = 16
MOST_STOP_CHARS = 256
MOST_SCHEMA_BYTES = 128 * 1024

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
    choice: Choice,
    schema: Schema | None,
    stop: str | list[str] | None = None,
) -> Options:
    """Return what the caller asks for."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MOST_STOPS or any(not 1 <= len(one) <= MOST_STOP_CHARS for one in stops):
        raise ParameterRefused(
            "stop", f"There may be {MOST_STOPS} texts to stop at, each of 1 to {MOST_STOP_CHARS} characters."
        )
    if schema is not None and len(msgspec.json.encode(schema)) > MOST_SCHEMA_BYTES:
        raise ParameterRefused("response_format", "The schema of the answer has more than 128 KiB.")
    return Options(
        max_output_tokens=tokens,
        temperature=temperature,
        top_p=top_p,
        stop=stops,
        choice=choice,
        schema=schema,
    )
