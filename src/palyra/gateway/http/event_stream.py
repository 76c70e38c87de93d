"""Server-sent events: a tape as it grows, for as long as the client stays."""

import asyncio
from contextlib import ExitStack

from starlette.types import Receive, Scope, Send

from palyra.core.events import FINAL_KINDS, Entry
from palyra.journal.tail import TapeReader

KEEP_ALIVE_SECONDS = 15.0
PIECE_BYTES = 64 * 1024


class EventStream:
    """A response that follows a tape. One that follows a run ends after the run's final entry."""

    def __init__(self, follower: TapeReader, *, stack: ExitStack, headers: dict[str, str], ends_with_run: bool) -> None:
        self._follower = follower
        self._place = stack
        self._headers = headers
        self._ends_with_run = ends_with_run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-store",
            "x-accel-buffering": "no",
            **self._headers,
        }
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        try:
            async with asyncio.TaskGroup() as group:
                watcher = group.create_task(self._watch(receive))
                await send({"type": "http.response.start", "status": 200, "headers": raw})
                if scope["method"] == "HEAD":
                    # A HEAD request must not wait for the end of the stream.
                    self._follower.close()
                await self._forward(send)
                watcher.cancel()
        finally:
            self._follower.close()
            self._place.close()

    async def _forward(self, send: Send) -> None:
        follower = self._follower
        over = False
        while not over and not follower.closed:
            entries = await follower.next(seconds=KEEP_ALIVE_SECONDS)
            chunk = b"".join(map(frame, entries)) if entries else b": still here\n\n"
            over = self._ends_with_run and bool(entries) and entries[-1].kind in FINAL_KINDS
            # In small pieces, so that little is buffered for a slow reader. A client that does not read is disconnected
            # (`protocol.py`); it can reconnect with the last id that it has seen.
            for start in range(0, len(chunk), PIECE_BYTES):
                end = start + PIECE_BYTES
                more = not over or end < len(chunk)
                await send({"type": "http.response.body", "body": chunk[start:end], "more_body": more})
        if not over:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _watch(self, receive: Receive) -> None:
        """Stop following when the client disconnects; its run continues."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._follower.close()


def frame(entry: Entry) -> bytes:
    """Return an entry as one server-sent event."""
    return f"id: {entry.tape_seq}\nevent: {entry.kind}\ndata: {entry.to_json()}\n\n".encode()
