"""Builds the requests of the Anthropic Messages API.

Reasoning comes with a signature, and the model must get both back unchanged, in the same position. So stored reasoning
has its position: after how many characters of the answer, and after how many calls.
"""

import base64
import hashlib
import re
from collections.abc import Iterator

from palyra.core.model.prompt import Image, Message, Prompt, Reasoning, Role, ToolChoice
from palyra.core.tool import JsonObject
from palyra.providers.dialect import ModelTarget
from palyra.providers.dialects.anthropic_schema import closed
from palyra.providers.dialects.partial_calls import names_of
from palyra.providers.dialects.tool_names import ToolNames
from palyra.providers.dialects.tool_schema import fitted

NAME = "anthropic"
ANSWER = "answer_in_json"
"""The tool that must be called for an answer that matches a schema, where the model does not accept the schema."""
MIN_BUDGET = 1024
MAX_BUDGET = 16_000
IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
EMPTY = "(an empty message)"
UNSEEN = "(an image that cannot be shown here)"

_NEWEST = (99, 0)
_NUMBER = re.compile(r"(?:^|[-._@/])(\d{1,2})(?=$|[-._@:])")
_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_CACHED = {"type": "ephemeral"}
_CHOICES = {ToolChoice.AUTO: "auto", ToolChoice.NONE: "none", ToolChoice.REQUIRED: "any"}


def version_of(model: str) -> tuple[int, int]:
    """Return the version of Claude in a name, as in `claude-sonnet-4-5-20250929`; without one it is the newest.

    A model that is not Claude counts as older than all of them, so that only the oldest features are used.
    """
    if "claude" not in model:
        return 0, 0
    numbers = [int(number) for number in _NUMBER.findall(model)[:2]]
    return (numbers[0], numbers[1] if len(numbers) > 1 else 0) if numbers else _NEWEST


def adapts(model: str) -> bool:
    """Return whether the model decides by itself how much it reasons; older ones get a budget."""
    return version_of(model) >= (4, 6)


def answer_tool(prompt: Prompt, target: ModelTarget, names: ToolNames) -> str | None:
    """Return the tool with which the answer must be given, if it must match a schema that the model does not accept."""
    if prompt.options.schema is None or _answer_schema(prompt.options.schema, target) is not None:
        return None
    claimed_names = {names.out(tool.name) for tool in prompt.tools}
    return next(
        name
        for name in (ANSWER + "_" * number for number in range(len(claimed_names) + 1))
        if name not in claimed_names
    )


def _answer_schema(schema: JsonObject, target: ModelTarget) -> JsonObject | None:
    """Return the schema as the model accepts it for an answer; None if it does not."""
    return closed(schema) if version_of(target.model) >= (4, 5) else None


def body_of(prompt: Prompt, target: ModelTarget) -> JsonObject:
    """Return the body of the request."""
    names, options = names_of(prompt), prompt.options
    limit = min(options.max_output_tokens or target.max_output_tokens, target.max_output_tokens)
    body: JsonObject = {"model": target.model, "max_tokens": limit, "stream": True}
    if prompt.system.strip():
        body["system"] = [_text(prompt.system)]
    tools, choice = _tools(prompt, names)
    if options.schema is not None:
        answer = answer_tool(prompt, target, names)
        if answer is None:
            schema = _answer_schema(options.schema, target)
            body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        else:
            free = bool(prompt.tools) and options.choice is not ToolChoice.NONE
            choice = {"type": "any"} if free else {"type": "tool", "name": answer}
            tools.append(_tool(answer, "Give your answer by calling this, in the end.", fitted(options.schema)))
    if tools:
        body["tools"], body["tool_choice"] = tools, choice
    # A model that is forced to call a tool may not reason.
    thinking = _thinking(prompt, target, limit=limit) if choice.get("type") not in ("any", "tool") else None
    if thinking is not None:
        body["thinking"] = thinking
    elif version_of(target.model) < (4, 7):
        # Later models, and those that reason, reject these; and only one of the two may be set.
        if options.temperature is not None:
            body["temperature"] = min(options.temperature, 1.0)
        elif options.top_p is not None:
            body["top_p"] = options.top_p
    if stop := [text for text in options.stop if text.strip()]:
        body["stop_sequences"] = stop
    body["messages"] = _messages(prompt, target, names)
    _mark(body)
    return body


def _tools(prompt: Prompt, names: ToolNames) -> tuple[list[JsonObject], JsonObject]:
    """Return the tools, and whether they may be called."""
    if prompt.tools:
        tools = [
            _tool(names.out(tool.name), tool.description, fitted(tool.parameters, keys=True)) for tool in prompt.tools
        ]
        return tools, {"type": _CHOICES[prompt.options.choice]}
    # Tools in the history must be declared, even if no tool may be called.
    called = {names.out(call.tool) for message in prompt.messages for call in message.calls}
    return [_tool(name, "Not to be called any more.", {}) for name in sorted(called)], {"type": "none"}


def _tool(name: str, description: str, parameters: JsonObject) -> JsonObject:
    return {"name": name, "description": description, "input_schema": {**parameters, "type": "object"}}


def _thinking(prompt: Prompt, target: ModelTarget, *, limit: int) -> JsonObject | None:
    if not target.card.reasoning:
        return None
    if adapts(target.model):
        # From 4.7 on reasoning is omitted unless requested.
        rows = {} if version_of(target.model) < (4, 7) else {"display": "summarized"}
        return {"type": "adaptive", **rows}
    budget = min(limit // 2, MAX_BUDGET)
    if budget < MIN_BUDGET or not _all_thought(prompt, target):
        return None
    return {"type": "enabled", "budget_tokens": budget}


def _all_thought(prompt: Prompt, target: ModelTarget) -> bool:
    """Return whether each step since the person's last message has reasoning of this model: with a budget it must."""
    for message in reversed(prompt.messages):
        if message.role is Role.USER:
            return True
        if message.role is Role.ASSISTANT and message.calls and not any(_thoughts(message, target)):
            return False
    return True


def _thoughts(message: Message, target: ModelTarget) -> Iterator[tuple[Reasoning, JsonObject]]:
    """Yield the reasoning that may be sent back to this model."""
    for thought in message.reasoning if target.card.reasoning else ():
        if thought.dialect != NAME or thought.data.get("model") != target.model:
            continue
        match thought.data:
            case {"redacted": str(data)}:
                yield thought, {"type": "redacted_thinking", "data": data}
            case {"signature": str(signature)}:
                yield thought, {"type": "thinking", "thinking": thought.text, "signature": signature}
            case _:
                pass


def _messages(prompt: Prompt, target: ModelTarget, names: ToolNames) -> list[JsonObject]:
    messages: list[JsonObject] = []
    for message in prompt.messages:
        role = "assistant" if message.role is Role.ASSISTANT else "user"
        match message.role:
            case Role.ASSISTANT:
                blocks = _assistant(message, target, names)
            case Role.TOOL:
                blocks = [_result(message, prompt, target)]
            case Role.USER:
                blocks = _user_content(message, prompt, target) or [_text(EMPTY)]
        if not blocks:
            continue
        if messages and messages[-1]["role"] == role:
            # Consecutive messages of one role are merged; results come first.
            text = messages[-1]["content"] + blocks
            messages[-1]["content"] = sorted(text, key=_is_later) if role == "user" else text
        else:
            messages.append({"role": role, "content": blocks})
    if messages and messages[0]["role"] != "user":
        messages.insert(0, {"role": "user", "content": [_text(EMPTY)]})
    return messages


def _is_later(block: JsonObject) -> bool:
    return bool(block["type"] != "tool_result")


def _text(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _user_content(message: Message, prompt: Prompt, target: ModelTarget) -> list[JsonObject]:
    """Return the images of a message and then its text; a text of whitespace is rejected."""
    blocks = [_image(image, prompt, target) for image in message.images]
    return [*blocks, _text(message.text)] if message.text.strip() else blocks


def _image(image: Image, prompt: Prompt, target: ModelTarget) -> JsonObject:
    content = prompt.images.get(image.digest)
    if content is None or not target.card.vision or image.media_type not in IMAGE_TYPES:
        return _text(UNSEEN)
    data = base64.b64encode(content).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": data}}


def _result(message: Message, prompt: Prompt, target: ModelTarget) -> JsonObject:
    block: JsonObject = {"type": "tool_result", "tool_use_id": _id(message.call_id or "")}
    if content := _user_content(message, prompt, target):
        block["content"] = content
    return block


def _assistant(message: Message, target: ModelTarget, names: ToolNames) -> list[JsonObject]:
    """Return the model's text and calls, with its reasoning in the original position."""
    blocks: list[JsonObject] = []
    chars = calls = 0
    for thought, block in _thoughts(message, target):
        upto_chars, upto_calls = _thought_position(thought.data)
        blocks += _assistant_content(message, names, chars=slice(chars, upto_chars), calls=slice(calls, upto_calls))
        chars, calls = max(chars, upto_chars), max(calls, upto_calls)
        blocks.append(block)
    return [*blocks, *_assistant_content(message, names, chars=slice(chars, None), calls=slice(calls, None))]


def _assistant_content(message: Message, names: ToolNames, *, chars: slice, calls: slice) -> Iterator[JsonObject]:
    if (text := message.text[chars]).strip():
        yield _text(text)
    for call in message.calls[calls]:
        yield {"type": "tool_use", "id": _id(call.call_id), "name": names.out(call.tool), "input": call.arguments}


def _thought_position(data: JsonObject) -> tuple[int, int]:
    match data.get("after"):
        case [int(chars), int(calls)] if chars >= 0 and calls >= 0:
            return chars, calls
        case _:
            return 0, 0


def _id(call_id: str) -> str:
    """Return a valid id: always the same for the same call."""
    if _ID.fullmatch(call_id):
        return call_id
    return "call_" + hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:20]


def _mark(body: JsonObject) -> None:
    """Mark what to cache: the stable part, and the conversation up to its last two inputs.

    The input before the last is where the previous request set its mark: that is certainly cached.
    """
    stable = body.get("system") or body.get("tools")
    if stable:
        stable[-1]["cache_control"] = _CACHED
    inputs = [message for message in body["messages"] if message["role"] == "user"]
    for message in inputs[-2:]:
        message["content"][-1]["cache_control"] = _CACHED
