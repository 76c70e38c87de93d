"""Capability manifests: upper bounds for the calls of a plugin or skill, whatever the policies say."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CapabilityManifest:
    """The capabilities of the skill or plugin on whose behalf a call is made."""

    name: str
    digest: str
    tools: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    """`example.org`, or `*.example.org` for all its subdomains."""
    paths: frozenset[str] = frozenset()
    """Folders, including everything below them."""
