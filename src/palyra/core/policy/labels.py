"""Labels: where a text came from. From most to least trusted: owner < tool < other < web, then unknown labels.

Every event has the labels of its sources. They are recorded from the first entry on, so that any later rule about them
can be evaluated over the whole history.
"""

OWNER = "owner"
"""The owner, and the files of the workspace unless a tool made them from something else."""
TOOL = "tool"
OTHER = "other"
"""Another person."""
WEB = "web"
UNKNOWN = "unknown"
"""Used where there is no label: a text of unknown origin is trusted least."""

KNOWN = (OWNER, TOOL, OTHER, WEB)
"""From most to least trusted."""


def least_trusted(present: tuple[str, ...]) -> str:
    """Return the label that counts for decisions; a missing or unknown label is trusted least."""
    return join(present)[-1] if present else UNKNOWN


def rank(label: str) -> int:
    """Return the rank of a label: 0 for the owner, the highest for an unknown label."""
    return KNOWN.index(label) if label in KNOWN else len(KNOWN)


def reaches(highest: str, label: str) -> bool:
    """Return whether a permission up to one label covers another. An unknown label covers only itself."""
    return label == highest or (highest in KNOWN and rank(label) <= rank(highest))


def join(*groups: tuple[str, ...]) -> tuple[str, ...]:
    """Return every label of the groups once, the most trusted first."""
    present = {label for group in groups for label in group}
    names = tuple(label for label in KNOWN if label in present)
    # Unknown labels are trusted least, and are never dropped.
    return names if len(names) == len(present) else names + tuple(sorted(present.difference(KNOWN)))


def mixed_label(*groups: tuple[str, ...]) -> tuple[str, ...]:
    """Return the labels of a text made of several pieces; a piece without labels counts as unknown."""
    return join(*(group or (UNKNOWN,) for group in groups))
