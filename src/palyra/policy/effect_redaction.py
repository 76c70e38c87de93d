"""Marks secrets in the effect of a call, before it is judged and shown. Every effect goes through here.

A call that would send a secret away is riskier. The texts stay complete, since a person who must decide has to see what
the call does; what looks like a secret is listed in lines of our own above the rest. It is found by its shape, also in
Base64 or hexadecimal. That is only a signal: a secret without such a shape passes, and only the approval that every
outgoing call needs can stop it.
"""

from collections.abc import Iterator

import msgspec

from palyra.core.errors import Invalid
from palyra.core.policy.effect import Effect
from palyra.core.text.escaping import escape_line, escape_start, visible, visible_line
from palyra.core.text.secret_markers import marker, markers_in
from palyra.core.tool import CallRuntime, FolderAccess, JsonObject, Risk
from palyra.policy.risk import highest

MAX_DETAIL_CHARS = 8 * 1024 * 1024
MAX_MARKS = 5
MARK_CHARS = 12
NAME_CHARS = 80
LOOKS_SECRET = "Looks like a secret: "


class EffectTooLarge(Invalid):
    """The effect of the call is too long to be shown to a person. Split it into several smaller calls."""


def redact_effect(
    effect: Effect,
    arguments: JsonObject,
    *,
    recorded: JsonObject | None = None,
    runtime: CallRuntime = CallRuntime.INTERNAL,
) -> Effect:
    """Return the effect of a call as it is judged and shown, with possible secrets marked.

    A file that contains a secret stays where it is; data sent to a host, to a server or in a command line does not. A
    command that the sandbox restricts to reading cannot send anything. `recorded` are the arguments with markers for
    sealed values: a mark must not reveal the beginning of a secret.
    """
    if len(effect.detail) > MAX_DETAIL_CHARS:
        raise EffectTooLarge(
            f"Showing the effect of the call takes {len(effect.detail):,} characters; the maximum is "
            f"{MAX_DETAIL_CHARS:,}. Split it into several smaller calls."
        )
    effect = msgspec.structs.replace(effect, summary=visible_line(effect.summary), detail=visible(effect.detail))
    leaves = effect.hosts or (effect.command and effect.access is not FolderAccess.READ) or runtime is CallRuntime.MCP
    if not leaves or not _contains_secret(arguments):
        return effect
    return msgspec.structs.replace(
        effect,
        risk=highest([Risk.HIGH], at_least=effect.risk),
        detail="\n".join([*_marks(arguments if recorded is None else recorded), "", effect.detail]),
        carries_secret=True,
        # A call that needs a check each time cannot be allowed for longer.
        kind="",
    )


def _contains_secret(arguments: JsonObject) -> bool:
    # Imported when something is sent: most calls send nothing, and the expressions are large.
    from palyra.core.text.scanner import carries_secret

    return carries_secret(arguments)


def _marks(arguments: JsonObject) -> list[str]:
    """Return the lines that point at possible secrets."""
    matches = list(_secret_locations(arguments, ""))
    marks = [LOOKS_SECRET + mark for mark in matches[:MAX_MARKS]]
    return [*marks, f"{LOOKS_SECRET}{len(matches) - MAX_MARKS} more"] if len(matches) > MAX_MARKS else marks


def _secret_locations(value: object, name: str) -> Iterator[str]:
    """Yield where secrets are: the argument, the line and the column, and how each begins."""
    from palyra.core.text.redaction import find_secrets
    from palyra.core.text.scanner import MAX_CHARS, carries_secret

    where = f"{escape_start(name, NAME_CHARS)}, " if name else ""
    if isinstance(value, str):
        sealed = sorted(markers_in(value))
        yield from (f"{where}{marker(name)}" for name in sealed)
        spans = find_secrets(value[:MAX_CHARS])
        for start, end in spans:
            line, column = value.count("\n", 0, start) + 1, start - value.rfind("\n", 0, start)
            begins = escape_line(value[start : min(end, start + MARK_CHARS)])
            yield f"{where}line {line}, column {column}, {end - start} characters that begin with {begins}"
        if not spans and not sealed and carries_secret(value):
            yield f"{where}in an encoded form"
    elif isinstance(value, dict):
        for key, part in value.items():
            if carries_secret(key):
                yield f"{where}the name {escape_start(key, NAME_CHARS)}"
            yield from _secret_locations(part, f"{name}.{key}" if name else key)
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value, 1):
            yield from _secret_locations(part, f"{name}[{number}]")
