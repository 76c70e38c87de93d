"""Where a piece of text came from, from trusted to not: owner < tool < other < web, and last what is not known.

Every event carries the labels of what went into it. They are recorded from the first entry on, so that any rule over
them can later be judged over the whole history.
"""

OWNER = "owner"
"""The person, and the files of the workspace unless a tool made them of something else."""
TOOL = "tool"
OTHER = "other"
"""Another person."""
WEB = "web"
UNKNOWN = "unknown"
"""Stands where no label does: what nobody vouches for is trusted least."""

KNOWN = (OWNER, TOOL, OTHER, WEB)
"""From trusted to not."""


def least_trusted(present: tuple[str, ...]) -> str:
    """Return the label that counts when something is decided; no label at all, or one not known, is trusted least."""
    return join(present)[-1] if present else UNKNOWN


def rank(label: str) -> int:
    """Return how little a label is trusted: 0 for the owner, the highest for one that is not known."""
    return KNOWN.index(label) if label in KNOWN else len(KNOWN)


def reaches(highest: str, label: str) -> bool:
    """Tell whether what was allowed up to a label covers another. One that is not known covers itself alone."""
    return label == highest or (highest in KNOWN and rank(label) <= rank(highest))


def join(*groups: tuple[str, ...]) -> tuple[str, ...]:
    """Return every label of the groups once, the most trusted first."""
    present = {label for group in groups for label in group}
    known = tuple(label for label in KNOWN if label in present)
    # What is not known is trusted least, and never lost.
    return known if len(known) == len(present) else known + tuple(sorted(present.difference(KNOWN)))


def mixed(*groups: tuple[str, ...]) -> tuple[str, ...]:
    """Return the labels of what several pieces were put together to; a piece without labels is not known."""
    return join(*(group or (UNKNOWN,) for group in groups))
