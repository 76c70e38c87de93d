"""Makes unified diffs of texts, exact to the last newline."""

from collections.abc import Iterator
from difflib import SequenceMatcher

CONTEXT = 3
MAX_COMPARED = 1_000_000
"""Lines times lines up to which a small diff is searched for; beyond that, everything is shown as one hunk."""
FEW, MAX_COMPARED_TO_FEW = 200, 200_000
"""In a shorter text, lines that repeat often are also compared, which takes longer."""
NO_NEWLINE = "\\ No newline at end of file"

Span = tuple[int, int, int, int]
"""Start and end line in the old text, and start and end line of their replacement in the new one."""


def unified(before: str | None, after: str | None, *, name: str) -> str:
    """Return the diff of a file of that name, empty if there is no difference; None stands for no file."""
    if before == after:
        return ""
    old, new = lines_of(before or ""), lines_of(after or "")
    head = [
        f"--- {'/dev/null' if before is None else f'a/{name}'}",
        f"+++ {'/dev/null' if after is None else f'b/{name}'}",
    ]
    return "\n".join([*head, *(line for group in _groups(_spans(old, new)) for line in _hunk(group, old, new))]) + "\n"


def counted(before: str | None, after: str | None) -> tuple[int, int]:
    """Return how many lines are added and how many are removed."""
    spans = _spans(lines_of(before or ""), lines_of(after or ""))
    return sum(span[3] - span[2] for span in spans), sum(span[1] - span[0] for span in spans)


def lines_of(text: str) -> list[str]:
    """Return the lines, each with its newline; other separators are part of a line."""
    lines = [line + "\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _spans(old: list[str], new: list[str]) -> list[Span]:
    start, maximum = 0, min(len(old), len(new))
    while start < maximum and old[start] == new[start]:
        start += 1
    end = 0
    while end < maximum - start and old[-1 - end] == new[-1 - end]:
        end += 1
    left, right = old[start : len(old) - end], new[start : len(new) - end]
    if not left and not right:
        return []
    if len(left) * len(right) > (MAX_COMPARED_TO_FEW if len(right) < FEW else MAX_COMPARED):
        return [(start, start + len(left), start, start + len(right))]
    # It may skip lines that repeat too often. Without that, a thousand lines take a minute.
    codes = SequenceMatcher(None, left, right).get_opcodes()
    return [(start + a, start + b, start + c, start + d) for kind, a, b, c, d in codes if kind != "equal"]


def _groups(spans: list[Span]) -> Iterator[list[Span]]:
    """Yield groups of spans that are near enough to share a hunk."""
    group: list[Span] = []
    for span in spans:
        if group and span[0] - group[-1][1] > 2 * CONTEXT:
            yield group
            group = []
        group.append(span)
    if group:
        yield group


def _hunk(group: list[Span], old: list[str], new: list[str]) -> Iterator[str]:
    first, last = group[0], group[-1]
    before = min(CONTEXT, first[0])
    after = min(CONTEXT, len(old) - last[1])
    yield (f"@@ -{_range(first[0] - before, last[1] + after)} +{_range(first[2] - before, last[3] + after)} @@")
    index = first[0] - before
    for a, b, c, d in group:
        yield from _marked(" ", old[index:a])
        yield from _marked("-", old[a:b])
        yield from _marked("+", new[c:d])
        index = b
    yield from _marked(" ", old[index : index + after])


def _range(start: int, end: int) -> str:
    length = end - start
    # An empty range names the line before it.
    return f"{start + 1 if length else start},{length}"


def _marked(mark: str, lines: list[str]) -> Iterator[str]:
    for line in lines:
        if line.endswith("\n"):
            yield mark + line[:-1]
        else:
            yield mark + line
            yield NO_NEWLINE
