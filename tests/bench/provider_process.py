"""A process that plays model providers: `python -m tests.bench.provider_process CHUNKS` prints its port.

It answers at `/DIALECT/…` with as many pieces of text as it was told, each in a chunk of its own as servers send them.
At `/DIALECT/paced/…` a pause follows each piece, as a model makes them; else all of it comes at once.
"""

import asyncio
import sys

import uvloop

from tests.contract.providers.wire import Wire, wires

PAUSE_SECONDS = 0.02
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def pieces(wire: Wire, chunks: int) -> list[bytes]:
    """Return a recorded answer with one of its pieces of text repeated."""
    events = [event + b"\n\n" for event in wire.recording("text").split(b"\n\n") if event.strip()]
    place = next(place for place, event in enumerate(events) if b" aus" in event)
    return [*events[:place], *[events[place]] * chunks, *events[place + 1 :]]


async def serve(chunks: int) -> None:
    answers = {wire.name: [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces(wire, chunks)] for wire in wires()}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                await reader.readexactly(int(length[15:]))
                _, name, how, *_ = head.split()[1].decode().split("/")
                if how == "paced":
                    writer.write(HEAD)
                    for piece in answers[name]:
                        writer.write(piece)
                        await asyncio.sleep(PAUSE_SECONDS)
                    writer.write(b"0\r\n\r\n")
                else:
                    writer.write(HEAD + b"".join(answers[name]) + b"0\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(int(sys.argv[1])))
