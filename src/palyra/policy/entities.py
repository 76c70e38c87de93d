"""Builds Cedar requests: who, what, and everything that is known about a call."""

import json
import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from palyra.core.channel import families
from palyra.core.policy import labels
from palyra.core.tool import Risk
from palyra.policy.query import PolicyQuery
from palyra.policy.shell_commands import any_prefix, parse_command_line

RISK_LEVELS = {risk: level for level, risk in enumerate(Risk)}

Reference = dict[str, str]


@dataclass(frozen=True, slots=True)
class CedarRequest:
    """A request to the engine, without the action."""

    principal: Reference
    resource: Reference
    context: dict[str, object]
    entities: str
    """The agent, the tool and the channel with their attributes, as JSON."""


def cedar_request(query: PolicyQuery, *, label: str, channel: str, granted: bool) -> CedarRequest:
    """Build the Cedar request of a query, for the least trusted of its labels and one of its channels."""
    tool, effect = query.tool, query.effect
    line = parse_command_line(effect.command)
    ways = [folders_above(path) for path in effect.paths]
    names = [[name for spelled in spellings(host) for name in domains_above(spelled)] for host in effect.hosts]
    return CedarRequest(
        principal=_named("Agent", query.agent_id),
        resource=_named("Tool", tool.name),
        context={
            "risk": effect.risk.value,
            "risk_level": RISK_LEVELS[effect.risk],
            "label": label,
            "label_level": labels.rank(label),
            "channel": {"__entity": _named("Channel", channel)},
            "approver_reachable": query.approver_reachable,
            "granted": granted,
            "paths": sorted({posixpath.normpath(path) for path in effect.paths}),
            "folders": _any(ways),
            "common_folders": _common(ways),
            "hosts": sorted({spelled for host in effect.hosts for spelled in spellings(host)}),
            "domains": _any(names),
            "common_domains": _common(names),
            "credentials": sorted(set(effect.credentials)),
            "carries_secret": effect.carries_secret,
            "signals": sorted(set(query.signals)),
            "access": effect.access.value if effect.access is not None else "",
            "command": effect.command,
            "commands": sorted(any_prefix(line)),
            # Always empty: options of a harmless command run other programs, so a prefix must not permit anything.
            "common_commands": [],
        },
        entities=_entities(query.principal, query.agent_id, tool.name, tool.read_only, channel),
    )


def folders_above(path: str) -> list[str]:
    """Return the path itself and every folder above it. A path that is not absolute has none."""
    result = []
    rest = posixpath.normpath(path)
    if rest.startswith("//"):
        rest = rest[1:]
    while rest.startswith("/"):
        result.append(rest)
        if rest == "/":
            break
        rest = rest[: rest.rindex("/")] or "/"
    return result


def domains_above(host: str) -> list[str]:
    """Return the host itself and every domain above it."""
    name = host.lower().rstrip(".")
    if not name or ":" in name or name.replace(".", "").isdigit():
        return [name]
    parts = name.split(".")
    return [".".join(parts[index:]) for index in range(len(parts))]


def spellings(host: str) -> list[str]:
    """Return a host as the network spells it and, if different, as people do: a policy may name either."""
    name = host.lower().rstrip(".")
    if "xn--" not in name:
        return [name]
    try:
        return [name, name.encode("ascii").decode("idna")]
    except UnicodeError:
        return [name]


def _any(ways: Iterable[Sequence[str]]) -> list[str]:
    return sorted({step for way in ways for step in way})


def _common(ways: Sequence[Sequence[str]]) -> list[str]:
    return sorted(set(ways[0]).intersection(*ways[1:])) if ways else []


def _named(kind: str, name: str) -> Reference:
    return {"type": kind, "id": name}


@lru_cache(maxsize=1024)
def _entities(principal: str, agent_id: str, tool: str, read_only: bool, channel: str) -> str:
    parts = tool.split(".")
    names = [".".join(parts[:end]) for end in range(1, len(parts))]
    return json.dumps(
        [
            {"uid": _named("Agent", agent_id), "attrs": {}, "parents": [_named("Principal", principal)]},
            {
                "uid": _named("Tool", tool),
                "attrs": {"read_only": read_only},
                "parents": [_named("Family", name) for name in names],
            },
            {
                "uid": _named("Channel", channel),
                "attrs": {},
                "parents": [_named("Channel", family) for family in families(channel)],
            },
        ]
    )
