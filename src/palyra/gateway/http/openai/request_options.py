"""The request options of a call, whatever its endpoint calls them."""

from msgspec import Struct

from palyra.core.ids import PrincipalId
from palyra.core.model.request_options import NO_REQUEST_OPTIONS, ClientTool, RequestOptions
from palyra.gateway.http.openai import tools
from palyra.gateway.http.openai.models import AnswerTarget
from palyra.gateway.http.openai.sampling_options import Schema, options_of
from palyra.tools.toolbox import Toolbox


class RequestParameters(Struct, frozen=True, kw_only=True):
    """What the parameters of a request come to."""

    system: str
    tools: tuple[ClientTool, ...]
    choice: str
    """`auto`, `none` or `required`."""
    named: str | None
    """The only tool that may be called."""
    parallel: bool
    temperature: float | None
    top_p: float | None
    tokens: int | None
    schema: Schema | None
    stop: str | list[str] | None = None


def request_options(
    wanted: RequestParameters, target: AnswerTarget, *, toolbox: Toolbox, who: PrincipalId
) -> RequestOptions:
    """Return the request options, or raise `ParameterUnsupported`."""
    tools.check(wanted.tools, taken=lambda: () if target.plain else toolbox.catalog(None, who=who).names())
    offered = tools.offer(wanted.tools, choice=wanted.choice, named=wanted.named, plain=target.plain)
    brief = RequestOptions(
        model=target.model,
        plain=target.plain,
        system=wanted.system,
        generation=options_of(
            temperature=wanted.temperature,
            top_p=wanted.top_p,
            tokens=wanted.tokens,
            stop=wanted.stop,
            choice=offered.choice,
            schema=wanted.schema,
        ),
        tools=offered.tools,
        one_by_one=bool(offered.tools) and not wanted.parallel,
    )
    # The same object: options with their default are left out on the tape.
    return NO_REQUEST_OPTIONS if brief == NO_REQUEST_OPTIONS else brief
