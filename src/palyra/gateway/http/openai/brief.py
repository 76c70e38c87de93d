"""What a caller asks for beside its message, whichever words its request has for it."""

from msgspec import Struct

from palyra.core.brief import NO_BRIEF, Brief, ClientTool
from palyra.core.ids import PrincipalId
from palyra.gateway.http.openai import tools
from palyra.gateway.http.openai.models import Target
from palyra.gateway.http.openai.options import Schema, options_of
from palyra.tools.toolbox import Toolbox


class Wanted(Struct, frozen=True, kw_only=True):
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


def brief_of(wanted: Wanted, target: Target, *, toolbox: Toolbox, who: PrincipalId) -> Brief:
    """Return how the caller is to be answered, or raise `ParameterRefused`."""
    tools.check(wanted.tools, taken=lambda: () if target.plain else toolbox.catalog(None, who=who).names())
    offered = tools.offer(wanted.tools, choice=wanted.choice, named=wanted.named, plain=target.plain)
    brief = Brief(
        model=target.model,
        plain=target.plain,
        system=wanted.system,
        options=options_of(
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
    # The very same value: what asks for nothing is left out on the tape.
    return NO_BRIEF if brief == NO_BRIEF else brief
