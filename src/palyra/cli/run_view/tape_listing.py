"""A tape as lines for a person: number, time, kind, and what matters of the content."""

from collections.abc import Callable

from palyra.cli.options import Invocation
from palyra.cli.terminal.output import clock_time, paint, screen_width, show_json_line
from palyra.cli.terminal.printable import printable_line, shorten
from palyra.gateway.client.tape_stream import ReceivedEntry, read_tape
from palyra.gateway.records.runs import TapePage
from palyra.runs.event_text import describe

KIND_WIDTH = len("file_checkpoint_restored")
MAX_DETAIL_CHARS = 300


def print_tape(invocation: Invocation, read_page: Callable[[int], TapePage], *, after_seq: int) -> None:
    """Print a tape; `read_page` returns its page after a position."""
    for line in read_tape(read_page, after_seq=after_seq):
        if invocation.json:
            show_json_line(line.text)
        else:
            print(tape_line(line))


def tape_line(line: ReceivedEntry) -> str:
    """Return an entry as one line that fits the terminal."""
    head = f"{line.tape_seq:>6}  {clock_time(line.at)}  "
    width = min(MAX_DETAIL_CHARS, screen_width() - len(head) - KIND_WIDTH - 2)
    content = shorten(printable_line(describe(line.event)), max(20, width))
    return f"{paint(head, 'dim')}{line.kind.ljust(KIND_WIDTH)}  {content}".rstrip()
