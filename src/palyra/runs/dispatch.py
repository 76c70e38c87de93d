"""Sealed values at dispatch: a marker goes back to where its value came from, or the call is refused.

A call may use the values that it brings itself, and `files.write` and `files.patch` those of the file that they write.
Everywhere else a marker means that a secret would get to a place that it was not in before.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from palyra.core.effect import Effect
from palyra.core.marker import in_arguments, marker, markers_in, resolved
from palyra.core.run import RunState
from palyra.core.tool import Markers, ToolCall
from palyra.runs.seals import Opened, Sealing, Seals, call_origin
from palyra.tools.base import Tool
from palyra.tools.sealed import NO_FILES, SealedElsewhere

MIN_PIECE_CHARS = 20
"""A line of a value of several lines is hidden by itself from this length on."""


@dataclass(slots=True)
class CallSeals:
    """The `Sealed` of one call. What it finds is written with the events of the step that it belongs to."""

    seals: Seals
    sealing: Sealing
    state: RunState
    call: ToolCall

    _own: dict[str, str] = field(default_factory=dict, init=False)
    """The values that the call brings itself."""
    _restored: dict[str, str] = field(default_factory=dict, init=False)
    """Those that it puts back."""

    async def opened(self, tool: Tool) -> ToolCall:
        """Return the call with the values that it brings itself, as it is carried out. Nothing of it is recorded.

        Raises `SealedElsewhere` if it has a marker of another value, unless the tool sees to that itself.
        """
        call = self.call
        ids = markers_in(call.arguments)
        if not ids or tool.markers is Markers.TEXT:
            return call
        known = await self.seals.open(self.state.principal, ids)
        origin = call_origin(call.tool, call.arguments)
        self._own = {name: one.value for name, one in known.items() if origin in one.origins}
        if tool.markers is Markers.REFUSED and (foreign := sorted(known.keys() - self._own.keys())):
            raise _elsewhere(foreign[0], known[foreign[0]], f"{call.tool} is another place")
        arguments = in_arguments(call.arguments, lambda text: resolved(text, self._own.get))
        return msgspec.structs.replace(call, arguments=arguments)

    async def marked(self, effect: Effect) -> Effect:
        """Return what a call would do as it is recorded and shown: with markers for secrets."""
        summary, detail = await self.shown(effect.summary), await self.shown(effect.detail)
        command = await self.shown(effect.command)
        if (summary, detail, command) == (effect.summary, effect.detail, effect.command):
            return effect
        # What is allowed for longer is written down as it is, so a class of calls cannot hold a secret.
        kind = "" if any(value in effect.kind for value in self._own.values()) else effect.kind
        return msgspec.structs.replace(effect, summary=summary, detail=detail, command=command, kind=kind)

    async def view(self, text: str, *, path: str) -> str:
        return (await self._view(text, path))[0]

    async def _view(self, text: str, path: str) -> tuple[str, dict[str, str]]:
        return await self.sealing.found_in(text, (f"file:{path}",))

    async def restore(self, text: str, *, path: str, there: str | None) -> str:
        ids = markers_in(text)
        if not ids:
            return text
        values = (await self._view(there, path))[1] if there is not None else {}
        known = await self.seals.open(self.state.principal, ids - values.keys())
        origin = f"file:{path}"
        for name, one in known.items():
            if origin not in one.origins:
                raise _elsewhere(name, one, f"{path} is another place")
            values[name] = one.value
        self._restored |= {name: values[name] for name in ids & values.keys()}
        return resolved(text, values.get)

    async def shown(self, text: str, there: Mapping[str, str] = NO_FILES) -> str:
        values = self._own | self._restored
        for path, content in there.items():
            values |= (await self._view(content, path))[1]
        # The longest first: one may stand within another.
        for name, value in sorted(values.items(), key=lambda one: len(one[1]), reverse=True):
            text = text.replace(value, marker(name))
            for piece in value.splitlines() if "\n" in value else ():
                if len(piece) >= MIN_PIECE_CHARS and not piece.startswith("---"):
                    text = text.replace(piece, marker(name))
        return await self.sealing.seal_inert(text, f"tool:{self.call.tool}")


def _elsewhere(name: str, one: Opened, why: str) -> SealedElsewhere:
    came = ", ".join(sorted(_told(origin) for origin in one.origins)) or "a session that is gone"
    return SealedElsewhere(
        f"{marker(name)} stands for a secret from {came}, and {why}: a sealed secret only goes back to where it came"
        " from. Nothing was done. Leave it out, and tell the person to put it there by hand, or to store it with"
        " `palyra secrets set NAME --host HOST`, so that http.fetch sends it to that host without showing it."
    )


def _told(origin: str) -> str:
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
