"""The program that matches a regular expression, alone in a process that can be killed.

It is started as a script and uses the standard library only. Its input is a line of JSON with the pattern, then
for each text a line with its length in bytes and a limit, followed by the text. It answers each with a line of JSON:
first the fault of the pattern, or a list of words one of which is in everything that it matches (empty if there are
none), then the numbers of the matching lines, counted from 0.
"""

import json
import re
import sys
from importlib import import_module
from typing import Any

# The only way to see the parts of a pattern. Their old, public names warn.
kinds: Any = import_module("re._constants")
parser: Any = import_module("re._parser")

MEMORY_BYTES = 512 * 1024 * 1024
CPU_SECONDS = 30
MIN_NEEDLE_CHARS = 2
MAX_NEEDLES = 32

TYPE_CHECKING = False  # as in `typing`, which this program does not import
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


def main() -> None:
    """Answer until the input ends."""
    _limit()
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    order = json.loads(source.readline())
    try:
        pattern = re.compile(order["pattern"], re.IGNORECASE if order["ignore_case"] else 0)
    except (re.error, OverflowError, RecursionError, MemoryError) as error:
        sink.write(json.dumps(str(error) or type(error).__name__).encode() + b"\n")
        return
    sink.write(json.dumps(_needles(order["pattern"])).encode() + b"\n")
    sink.flush()
    while header := source.readline():
        length, limit = json.loads(header)
        lines = source.read(length).decode("utf-8", "replace").split("\n")
        result: list[int] = []
        for number, line in enumerate(lines):
            if pattern.search(line):
                result.append(number)
                if len(result) >= limit:
                    break
        sink.write(json.dumps(result).encode() + b"\n")
        sink.flush()


def _needles(pattern: str) -> list[str]:
    """Return words of which at least one, in any case, is in every text that the pattern matches."""
    try:
        matches = _needed(parser.parse(pattern))
    except RecursionError:
        return []
    return matches if len(matches) <= MAX_NEEDLES and all(len(word) >= MIN_NEEDLE_CHARS for word in matches) else []


def _needed(items: "Iterable[tuple[Any, Any]]") -> list[str]:
    """Return the best words that a sequence requires: those of which the shortest is longest."""
    best: list[str] = []
    run = ""
    for kind, value in items:
        if kind in (kinds.AT, kinds.ASSERT, kinds.ASSERT_NOT):
            continue  # consumes no character, so its neighbours are adjacent
        if kind is kinds.LITERAL and 0x20 <= value < 0x7F:
            run += chr(value)
            best = max(best, [run], key=_worth)
            continue
        run = ""
        best = max(best, _needed_of(kind, value), key=_worth)
    return best


def _needed_of(kind: object, value: "Any") -> list[str]:
    if kind is kinds.SUBPATTERN:
        return _needed(value[3])
    if kind is kinds.ATOMIC_GROUP:
        return _needed(value)
    if kind in (kinds.MAX_REPEAT, kinds.MIN_REPEAT, kinds.POSSESSIVE_REPEAT):
        return _needed(value[2]) if value[0] > 0 else []
    if kind is kinds.BRANCH:
        ways = [_needed(way) for way in value[1]]
        return [word for way in ways for word in way] if all(ways) else []
    return []


def _worth(words: list[str]) -> int:
    return min(map(len, words), default=0)


def _limit() -> None:
    try:
        import resource
    except ImportError:
        return
    # The parent kills it in time; these hold if the parent is gone.
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


if __name__ == "__main__":
    main()
