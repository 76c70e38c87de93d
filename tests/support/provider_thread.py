"""A provider of models on a thread of its own, for tests that wait: daemons and commands are other processes.

It lists models and answers, in the dialect that it is asked in, as long as it is given the right key.
"""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from palyra.core.model.provider_status import PROBE_CITY, PROBE_TOOL, TEXTS, ToolProbe
from tests.support.model_server import Asked, Line, ModelServer, Reply, answer, model_server, stream

MODELS = ("tiny", "tiny-2", "large")
SAYS = "Hello there."


@dataclass
class Played:
    """What the provider does; it may be changed between two requests."""

    key: str = ""
    """The key that it wants; none if empty."""
    models: tuple[str, ...] = MODELS
    instead: Reply | None = None
    """How it answers a question instead of well."""
    server: ModelServer = field(default_factory=ModelServer)

    @property
    def url(self) -> str:
        """Where it answers, with `/v1`."""
        return self.server.url

    @property
    def questions(self) -> list[Asked]:
        """What it was asked, without the lists."""
        return [asked for asked in self.server.asked if asked.method == "POST"]

    async def reply(self, asked: Asked, line: Line) -> None:
        """Answer one request."""
        given = asked.headers.get("authorization", "").removeprefix("Bearer ")
        given = given or asked.headers.get("x-api-key", "") or asked.headers.get("x-goog-api-key", "")
        if self.key and given != self.key:
            await answer(401, {"error": {"message": f"Incorrect API key provided: {given}", "type": "auth"}})(
                asked, line
            )
        elif asked.method == "GET":
            await answer(200, self._listed(asked))(asked, line)
        elif self.instead is not None:
            await self.instead(asked, line)
        else:
            await stream(called(asked) if wants_call(asked) else said(asked))(asked, line)

    def _listed(self, asked: Asked) -> object:
        if "x-goog-api-key" in asked.headers:
            ways = ["generateContent", "streamGenerateContent"]
            return {"models": [{"name": f"models/{name}", "supportedGenerationMethods": ways} for name in self.models]}
        return {"object": "list", "data": [{"id": name, "object": "model", "type": "model"} for name in self.models]}


def wants_call(asked: Asked) -> bool:
    """Tell whether a question offers the tool of a trial, and asks for a call of it."""
    return bool(asked.json().get("tools")) and TEXTS[ToolProbe.CALL].encode() in asked.body


def called(asked: Asked, city: str = PROBE_CITY) -> str:
    """Return a call of that tool, in the dialect that the question was asked in."""
    name, arguments = PROBE_TOOL.name, json.dumps({"city": city})
    if asked.path.endswith("/chat/completions"):
        chunk = {"id": "c1", "object": "chat.completion.chunk", "model": "tiny"}
        call = {"index": 0, "id": "k1", "type": "function", "function": {"name": name, "arguments": arguments}}
        return _events(
            {**chunk, "choices": [{"index": 0, "delta": {"role": "assistant", "tool_calls": [call]}}]},
            {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
            {**chunk, "choices": [], "usage": {"prompt_tokens": 60, "completion_tokens": 9, "total_tokens": 69}},
            end="data: [DONE]\n\n",
        )
    if asked.path.endswith("/responses"):
        item = {"id": "f1", "type": "function_call", "call_id": "k1", "name": name, "status": "completed"}
        usage = {"input_tokens": 60, "output_tokens": 9, "total_tokens": 69}
        whole = {**item, "arguments": arguments}
        return _named(
            {"type": "response.created", "response": {"id": "r1", "status": "in_progress", "output": []}},
            {"type": "response.output_item.added", "output_index": 0, "item": {**item, "arguments": ""}},
            {"type": "response.function_call_arguments.delta", "item_id": "f1", "output_index": 0, "delta": arguments},
            {"type": "response.output_item.done", "output_index": 0, "item": whole},
            {
                "type": "response.completed",
                "response": {"id": "r1", "status": "completed", "output": [whole], "usage": usage},
            },
        )
    if asked.path.endswith("/messages"):
        started = {"id": "m1", "type": "message", "role": "assistant", "content": [], "model": "tiny"}
        block = {"type": "tool_use", "id": "k1", "name": name, "input": {}}
        return _named(
            {"type": "message_start", "message": {**started, "usage": {"input_tokens": 60, "output_tokens": 1}}},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "input_json_delta", "partial_json": arguments},
            },
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
            {"type": "message_stop"},
        )
    part = {"functionCall": {"name": name, "args": {"city": city}}}
    spoken = {"content": {"role": "model", "parts": [part]}, "index": 0, "finishReason": "STOP"}
    usage = {"promptTokenCount": 60, "candidatesTokenCount": 9, "totalTokenCount": 69}
    return _events({"candidates": [spoken], "usageMetadata": usage})


def said(asked: Asked, text: str = SAYS) -> str:
    """Return a whole answer in the dialect that the question was asked in: 11 tokens in, 4 out."""
    if asked.path.endswith("/chat/completions"):
        chunk = {"id": "c1", "object": "chat.completion.chunk", "model": "tiny"}
        return _events(
            {**chunk, "choices": [{"index": 0, "delta": {"role": "assistant", "content": text}}]},
            {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {**chunk, "choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 4, "total_tokens": 15}},
            end="data: [DONE]\n\n",
        )
    if asked.path.endswith("/responses"):
        usage = {"input_tokens": 11, "output_tokens": 4, "total_tokens": 15}
        item = {"id": "m1", "type": "message", "role": "assistant", "status": "completed"}
        content = [{"type": "output_text", "text": text, "annotations": []}]
        at = {"item_id": "m1", "output_index": 0, "content_index": 0}
        done = {"id": "r1", "status": "completed", "output": [{**item, "content": content}], "usage": usage}
        return _named(
            {"type": "response.created", "response": {"id": "r1", "status": "in_progress", "output": []}},
            {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
            {"type": "response.output_text.delta", **at, "delta": text},
            {"type": "response.output_item.done", "output_index": 0, "item": {**item, "content": content}},
            {"type": "response.completed", "response": done},
        )
    if asked.path.endswith("/messages"):
        started = {"id": "m1", "type": "message", "role": "assistant", "content": [], "model": "tiny"}
        return _named(
            {"type": "message_start", "message": {**started, "usage": {"input_tokens": 11, "output_tokens": 1}}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 4}},
            {"type": "message_stop"},
        )
    spoken = {"content": {"role": "model", "parts": [{"text": text}]}, "index": 0, "finishReason": "STOP"}
    usage = {"promptTokenCount": 11, "candidatesTokenCount": 4, "totalTokenCount": 15}
    return _events({"candidates": [spoken], "usageMetadata": usage})


@contextmanager
def played(*, key: str = "", models: tuple[str, ...] = MODELS) -> Iterator[Played]:
    """Serve on a free port of this machine for as long as the context lasts."""
    made = Played(key=key, models=models)
    there, leave = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        async with model_server(made.reply) as server:
            made.server = server
            loops.append(asyncio.get_running_loop())
            there.set()
            await leave.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert there.wait(60), "the provider does not start"
    try:
        yield made
    finally:
        loops[0].call_soon_threadsafe(leave.set)
        thread.join(60)


def _events(*data: object, end: str = "") -> str:
    return "".join(f"data: {json.dumps(one)}\n\n" for one in data) + end


def _named(*data: dict[str, object]) -> str:
    return "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in data)
