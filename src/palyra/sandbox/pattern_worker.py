"""The program that matches a regular expression, alone in a process that can be killed.

It is started as a script and uses the standard library only. On its input comes a line of JSON with the pattern, then
for each text a line with its length in bytes and a limit, followed by the text. It answers each with a line of JSON:
first the fault of the pattern or null, then the numbers of the matching lines, counted from 0.
"""

import json
import re
import sys

MEMORY_BYTES = 512 * 1024 * 1024
CPU_SECONDS = 30


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
    sink.write(b"null\n")
    sink.flush()
    while header := source.readline():
        length, limit = json.loads(header)
        lines = source.read(length).decode("utf-8", "replace").split("\n")
        found: list[int] = []
        for number, line in enumerate(lines):
            if pattern.search(line):
                found.append(number)
                if len(found) >= limit:
                    break
        sink.write(json.dumps(found).encode() + b"\n")
        sink.flush()


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
