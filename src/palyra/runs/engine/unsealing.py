"""Opens sealed values at dispatch: a marker goes back to where its value came from, or the call is refused.

A call may use the values that it brings itself, and `files.write` and `files.patch` those of the file that they write.
Everywhere else a marker means that a secret would get to a destination where it was not before.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from palyra.core.policy.effect import Effect
from palyra.core.run.state import RunState
from palyra.core.text.secret_markers import map_arguments, marker, markers_in, resolve_markers
from palyra.core.tool import MarkerHandling, ToolCall
from palyra.runs.services.sealing import OpenedSecret, SealingUnit, SecretSealer, call_origin
from palyra.tools.base import Tool
from palyra.tools.sealed_values import NO_FILES, SecretMarkerNotAllowed

MIN_PIECE_CHARS = 20
"""In a value of several lines, a line of at least this length is also hidden by itself."""


@dataclass(slots=True)
class CallUnsealer:
    """The `SealedValues` of one call. What it finds is written with the events of its step."""

    seals: SecretSealer
    sealing: SealingUnit
    state: RunState
    call: ToolCall

    _own: dict[str, str] = field(default_factory=dict, init=False)
    """The values that the call brings itself."""
    _restored: dict[str, str] = field(default_factory=dict, init=False)
    """The values that it restores in a file."""

    async def opened(self, tool: Tool) -> ToolCall:
        """Return the call as it is executed, with the values that it brings itself. Nothing of it is recorded.

        Raises `SecretMarkerNotAllowed` if it has a marker of another value, unless the tool handles those itself.
        """
        call = self.call
        ids = markers_in(call.arguments)
        if not ids or tool.markers is MarkerHandling.TEXT:
            return call
        opened_secrets = await self.seals.open(self.state.principal, ids)
        origin = call_origin(call.tool, call.arguments)
        self._own = {name: one.value for name, one in opened_secrets.items() if origin in one.origins}
        if tool.markers is MarkerHandling.REFUSED and (foreign := sorted(opened_secrets.keys() - self._own.keys())):
            raise _elsewhere(foreign[0], opened_secrets[foreign[0]], f"{call.tool} is not where it came from")
        arguments = map_arguments(call.arguments, lambda text: resolve_markers(text, self._own.get))
        return msgspec.structs.replace(call, arguments=arguments)

    async def marked(self, effect: Effect) -> Effect:
        """Return the effect of a call as it is recorded and shown: with markers for secrets."""
        summary, detail = await self.reseal(effect.summary), await self.reseal(effect.detail)
        command = await self.reseal(effect.command)
        if (summary, detail, command) == (effect.summary, effect.detail, effect.command):
            return effect
        # A lasting grant is stored as it is, so a class of calls cannot hold a secret.
        kind = "" if any(value in effect.kind for value in self._own.values()) else effect.kind
        return msgspec.structs.replace(effect, summary=summary, detail=detail, command=command, kind=kind)

    async def view(self, text: str, *, path: str) -> str:
        return (await self._view(text, path))[0]

    async def _view(self, text: str, path: str) -> tuple[str, dict[str, str]]:
        return await self.sealing.seal_text(text, (f"file:{path}",))

    async def restore(self, text: str, *, path: str, target: str | None) -> str:
        ids = markers_in(text)
        if not ids:
            return text
        values = (await self._view(target, path))[1] if target is not None else {}
        opened_secrets = await self.seals.open(self.state.principal, ids - values.keys())
        origin = f"file:{path}"
        for name, one in opened_secrets.items():
            if origin not in one.origins:
                raise _elsewhere(name, one, f"{path} is not where it came from")
            values[name] = one.value
        self._restored |= {name: values[name] for name in ids & values.keys()}
        return resolve_markers(text, values.get)

    async def reseal(self, text: str, target: Mapping[str, str] = NO_FILES) -> str:
        values = self._own | self._restored
        for path, content in target.items():
            values |= (await self._view(content, path))[1]
        # The longest first: one may be part of another.
        for name, value in sorted(values.items(), key=lambda one: len(one[1]), reverse=True):
            text = text.replace(value, marker(name))
            for piece in value.splitlines() if "\n" in value else ():
                if len(piece) >= MIN_PIECE_CHARS and not piece.startswith("---"):
                    text = text.replace(piece, marker(name))
        return await self.sealing.seal_inert(text, f"tool:{self.call.tool}")


def _elsewhere(name: str, one: OpenedSecret, why: str) -> SecretMarkerNotAllowed:
    outcome = ", ".join(sorted(_origin_text(origin) for origin in one.origins)) or "a deleted session"
    return SecretMarkerNotAllowed(
        f"{marker(name)} is a secret from {outcome}, and {why}; a sealed secret may only be written back "
        "to its source. Nothing was done. Leave it out, and ask the person to add it by hand, or to "
        "store it with `palyra secrets set NAME --host HOST`, so that http.fetch sends it to that host "
        "without showing it."
    )


def _origin_text(origin: str) -> str:
    kind, _, rest = origin.partition(":")
    match kind:
        case "file":
            return rest
        case "tool":
            return f"the result of {rest}"
        case "call":
            return "another call"
        case _:
            return "a person's message"
