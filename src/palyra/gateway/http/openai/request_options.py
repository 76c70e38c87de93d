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
    request_parameters: RequestParameters, target: AnswerTarget, *, toolbox: Toolbox, who: PrincipalId
) -> RequestOptions:
    """Return the request options, or raise `ParameterUnsupported`."""
    tools.check(
        request_parameters.tools, claimed=lambda: () if target.plain else toolbox.catalog(None, who=who).names()
    )
    offered = tools.offer(
        request_parameters.tools, choice=request_parameters.choice, named=request_parameters.named, plain=target.plain
    )
    options = RequestOptions(
        model=target.model,
        plain=target.plain,
        system=request_parameters.system,
        generation=options_of(
            temperature=request_parameters.temperature,
            top_p=request_parameters.top_p,
            tokens=request_parameters.tokens,
            stop=request_parameters.stop,
            choice=offered.choice,
            schema=request_parameters.schema,
        ),
        tools=offered.tools,
        one_by_one=bool(offered.tools) and not request_parameters.parallel,
    )
    # The same object: options with their default are left out on the tape.
    return NO_REQUEST_OPTIONS if options == NO_REQUEST_OPTIONS else options
