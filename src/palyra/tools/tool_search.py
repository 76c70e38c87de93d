"""`tools.search`: discover tools that are not offered from the start, because they are too many for every prompt."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from palyra.core.model.prompt import estimate_tokens
from palyra.core.policy import labels
from palyra.core.tool import JsonObject, Risk, ToolSpec
from palyra.tools.base import DiscoveredTools, Tool, ToolContext, tool
from palyra.tools.tool_ranking import rank

NAME = "tools.search"
MAX_RESULTS = 8
FOUND_TOKENS = 2_000
"""The maximum number of tokens that the tools discovered by one search take in the following prompts."""
MAX_DESCRIPTION_CHARS = 400
MAX_ARGUMENTS = 20
MAX_GROUPS = 12

Query = Annotated[str, Meta(max_length=400, description="What it should do, in a few words, or its name.")]

_encode = msgspec.json.Encoder()


def tokens_of(spec: ToolSpec) -> int:
    """Estimate the tokens that a tool takes in a prompt."""
    return estimate_tokens(_encode.encode(spec).decode())


def search_tool(tools: Sequence[Tool]) -> Tool:
    """Return the tool that searches these."""
    specs = tuple(one.spec for one in tools)
    described = labels.join(*((one.described_by,) for one in tools))

    async def run(context: ToolContext, value: Any) -> DiscoveredTools:
        # The result quotes descriptions that others wrote.
        context.witness.learned(described)
        return await asyncio.to_thread(_search, specs, value.query)

    spec = search_nothing.spec
    description = f"{spec.description} There are {len(specs)}: {_groups(specs)}."
    named = msgspec.structs.replace(spec, description=description)
    return replace(search_nothing, spec=named, run=run, described_by=labels.least_trusted(described))


@tool(name=NAME, risk=Risk.LOW, repeatable=True, read_only=True)
async def search_nothing(context: ToolContext, *, query: Query) -> DiscoveredTools:
    """Find further tools; those found can be called from your next turn on."""
    return _search((), query)


def _search(specs: Sequence[ToolSpec], query: str) -> DiscoveredTools:
    matching_specs: list[ToolSpec] = []
    room = FOUND_TOKENS
    for spec in rank(query, specs):
        room -= tokens_of(spec)
        if len(matching_specs) == MAX_RESULTS or (matching_specs and room < 0):
            break
        matching_specs.append(spec)
    if not matching_specs:
        return DiscoveredTools(
            f"No tool matches {query[:60]!r}. Try other words. There are {len(specs)}: {_groups(specs)}."
        )
    listed = "\n\n".join(map(_tool_text, matching_specs))
    return DiscoveredTools(f"From now on you can call:\n\n{listed}", tuple(spec.name for spec in matching_specs))


def _tool_text(spec: ToolSpec) -> str:
    text = " ".join(spec.description.split())
    displayed = text if len(text) <= MAX_DESCRIPTION_CHARS else text[:MAX_DESCRIPTION_CHARS] + "…"
    return f"{spec.name}: {displayed}\narguments: {_arguments(spec.parameters)}"


def _arguments(parameters: JsonObject) -> str:
    properties, required = parameters.get("properties"), parameters.get("required")
    if not isinstance(properties, dict) or not properties:
        return "none"
    needed = required if isinstance(required, list) else []
    lines = [
        f"{name} ({_kind(of)}{'' if name in needed else ', optional'})"
        for name, of in list(properties.items())[:MAX_ARGUMENTS]
    ]
    return ", ".join(lines) + (", …" if len(properties) > MAX_ARGUMENTS else "")


def _kind(of: object) -> str:
    kind = of.get("type") if isinstance(of, dict) else None
    return kind if isinstance(kind, str) else "any"


def _groups(specs: Sequence[ToolSpec]) -> str:
    """Say where the tools come from, the largest group first."""
    counts = Counter(spec.name.rpartition(".")[0] or spec.name for spec in specs)
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    lines = [f"{group} ({count})" for group, count in ordered[:MAX_GROUPS]]
    return ", ".join(lines) + (", and others" if len(ordered) > MAX_GROUPS else "")
