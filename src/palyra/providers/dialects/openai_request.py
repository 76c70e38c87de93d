"""Builds the requests of OpenAI Chat Completions."""

import re
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import msgspec

from palyra.core.json_schema import SchemaTooLarge, walk
from palyra.core.model.prompt import GenerationOptions, Message, Prompt, Reasoning, Role, ToolChoice
from palyra.core.tool import JsonObject, ToolCall, ToolSpec
from palyra.providers.dialect import AS_JSON, ModelTarget
from palyra.providers.dialects.openai_models import takes_completion_tokens, takes_short_ids
from palyra.providers.dialects.openai_roles import merge_turns
from palyra.providers.dialects.partial_calls import names_of
from palyra.providers.dialects.tool_names import ToolNames
from palyra.providers.dialects.tool_schema import fitted

NAME = "openai"

_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")


def body_of(prompt: Prompt, target: ModelTarget) -> JsonObject:
    """Return the request body. Stable parts come first, for prompt caches."""
    names = names_of(prompt)
    options = prompt.options
    reported = options.schema is not None and _is_at(target, "deepseek.com")
    body: JsonObject = {"model": target.model}
    if prompt.tools:
        body["tools"] = [_tool(tool, target, names) for tool in prompt.tools]
        if options.choice is not ToolChoice.AUTO:
            body["tool_choice"] = options.choice.value
    body["messages"] = merge_turns(_messages(prompt, target, names), gap=takes_short_ids(target.model))
    if reported:
        # It guarantees JSON only, and only if the prompt asks for it too.
        words = AS_JSON + msgspec.json.encode(options.schema).decode()
        body["messages"].insert(1 if prompt.system else 0, {"role": "system", "content": words})
    longest = "max_completion_tokens" if takes_completion_tokens(target.model) else "max_tokens"
    body[longest] = max_tokens(options, target)
    body.update(sampling(options))
    if options.stop:
        body["stop"] = list(options.stop)
    if reported:
        body["response_format"] = {"type": "json_object"}
    elif options.schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": shape(options.schema)}
    body["stream"] = True
    # Mistral reports usage by default, and rejects the option that requests it.
    if not _is_at(target, "mistral.ai"):
        body["stream_options"] = {"include_usage": True}
    return body


def max_tokens(options: GenerationOptions, target: ModelTarget) -> int:
    """Return the maximum tokens of the answer."""
    return min(target.max_output_tokens, options.max_output_tokens or target.max_output_tokens)


def sampling(options: GenerationOptions) -> JsonObject:
    """Return the sampling parameters, if any are set."""
    request = {"temperature": options.temperature, "top_p": options.top_p}
    return {name: value for name, value in request.items() if value is not None}


def shape(schema: JsonObject) -> JsonObject:
    """Return the schema of the answer, in the format of these dialects."""
    return {"name": "answer", "schema": schema, "strict": is_strict(schema)}


def is_strict(schema: JsonObject) -> bool:
    """Return whether OpenAI can enforce a schema: objects must list all their properties."""
    try:
        return all(_lists_all(part) for _, part in walk(schema))
    except SchemaTooLarge:
        return False


def _lists_all(part: Any) -> bool:
    if not isinstance(part, dict) or not (part.get("type") == "object" or "properties" in part):
        return True
    properties, required = part.get("properties"), part.get("required")
    named = set(properties) if isinstance(properties, dict) else set()
    return part.get("additionalProperties") is False and isinstance(required, list) and set(map(str, required)) == named


def parameters(tool: ToolSpec, target: ModelTarget) -> JsonObject:
    """Return a tool's parameters as an object schema, which providers require."""
    return fitted(tool.parameters, keys="claude" in target.model.lower())


def thinker(target: ModelTarget) -> str:
    """Return the identity of the reasoning model: its reasoning is sent back to no other."""
    return f"{target.provider}/{target.model}"


def is_own(reasoning: Reasoning, dialect: str, target: ModelTarget) -> bool:
    """Return whether reasoning comes from the target model."""
    return reasoning.dialect == dialect and reasoning.data.get("by") == thinker(target)


def written(call: ToolCall) -> str:
    """Return a call's arguments as the model wrote them, or would have."""
    return msgspec.json.encode(call.arguments).decode()


def data_url(media_type: str, picture: bytes) -> str:
    """Return an image as a data URL."""
    return f"data:{media_type};base64,{b64encode(picture).decode()}"


def _is_at(target: ModelTarget, domain: str) -> bool:
    """Return whether the target is the vendor's own API."""
    host = urlsplit(target.base_url).hostname or ""
    return host == domain or host.endswith(f".{domain}")


def _call_id(value: str | None, target: ModelTarget) -> str:
    """Return the id of a call as the model accepts it: always the same for the same call."""
    if value is None or not takes_short_ids(target.model) or _SHORT_ID.fullmatch(value):
        return value or ""
    return sha256(value.encode()).hexdigest()[:9]


def _tool(tool: ToolSpec, target: ModelTarget, names: ToolNames) -> JsonObject:
    function = {"name": names.out(tool.name), "description": tool.description, "parameters": parameters(tool, target)}
    return {"type": "function", "function": function}


def _messages(prompt: Prompt, target: ModelTarget, names: ToolNames) -> Iterator[JsonObject]:
    vision = bool(target.card.vision)
    if prompt.system:
        yield {"role": "system", "content": prompt.system}
    documents: list[JsonObject] = []
    for message in prompt.messages:
        if message.role is not Role.TOOL and documents:
            yield _pictures_of_tools(documents)
            documents = []
        match message.role:
            case Role.USER:
                pictures = list(_pictures(message, prompt, vision=vision))
                text = {"type": "text", "text": message.text}
                yield {"role": "user", "content": [text, *pictures] if pictures else message.text}
            case Role.ASSISTANT:
                yield _assistant(message, target, names)
            case Role.TOOL:
                yield {"role": "tool", "tool_call_id": _call_id(message.call_id, target), "content": message.text}
                documents += _pictures(message, prompt, vision=vision)
    if documents:
        yield _pictures_of_tools(documents)


def _pictures_of_tools(pictures: list[JsonObject]) -> JsonObject:
    # A tool message contains only text, and nothing may come between the results of one turn.
    return {"role": "user", "content": [{"type": "text", "text": "The images of these results:"}, *pictures]}


def _pictures(message: Message, prompt: Prompt, *, vision: bool) -> Iterator[JsonObject]:
    for image in message.images:
        picture = prompt.images.get(image.digest)
        if vision and picture is not None:
            yield {"type": "image_url", "image_url": {"url": data_url(image.media_type, picture)}}
        else:
            yield {"type": "text", "text": f"[an image ({image.media_type}) that cannot be shown]"}


def _assistant(message: Message, target: ModelTarget, names: ToolNames) -> JsonObject:
    document: JsonObject = {"role": "assistant", "content": message.text or (None if message.calls else "")}
    for reasoning in message.reasoning:
        # Reasoning that led to calls must be sent back with them for the rest of the conversation; other reasoning only
        # adds tokens, and some servers reject it. Groq sends reasoning, and rejects it in requests.
        requested = (message.calls or "details" in reasoning.data) and not _is_at(target, "groq.com")
        if is_own(reasoning, NAME, target) and requested:
            _show_again(document, reasoning)
    if message.calls:
        document["tool_calls"] = [
            {
                "id": _call_id(call.call_id, target),
                "type": "function",
                "function": {"name": names.out(call.tool), "arguments": written(call)},
            }
            for call in message.calls
        ]
    return document


def _show_again(document: JsonObject, reasoning: Reasoning) -> None:
    match reasoning.data.get("field"):
        case "reasoning_details":
            document["reasoning_details"] = reasoning.data.get("details", [])
        case ("reasoning_content" | "reasoning") as field:
            # Also an empty one: DeepSeek requires the field itself.
            document[field] = document.get(field, "") + reasoning.text
        case _:
            pass
