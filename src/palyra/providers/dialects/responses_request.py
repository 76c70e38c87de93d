"""Builds the requests of OpenAI Responses."""

from collections.abc import Iterator

from palyra.core.model.prompt import Message, Prompt, Role, ToolChoice
from palyra.core.tool import JsonObject, ToolSpec
from palyra.providers.dialect import ModelTarget
from palyra.providers.dialects.openai_models import thinks
from palyra.providers.dialects.openai_request import data_url, is_own, max_tokens, parameters, sampling, shape, written
from palyra.providers.dialects.partial_calls import names_of
from palyra.providers.dialects.tool_names import ToolNames

NAME = "responses"
MIN_OUTPUT_TOKENS = 16
"""The minimum that the API accepts."""


def body_of(prompt: Prompt, target: ModelTarget) -> JsonObject:
    """Return the request body. Stable parts come first, for prompt caches."""
    names = names_of(prompt)
    options = prompt.options
    body: JsonObject = {"model": target.model, "instructions": prompt.system}
    if prompt.tools:
        body["tools"] = [_tool(tool, target, names) for tool in prompt.tools]
        if options.choice is not ToolChoice.AUTO:
            body["tool_choice"] = options.choice.value
    body["input"] = list(_items(prompt, target, names))
    body["max_output_tokens"] = max(MIN_OUTPUT_TOKENS, max_tokens(options, target))
    body.update(sampling(options))
    if options.schema is not None:
        body["text"] = {"format": {"type": "json_schema", **shape(options.schema)}}
    if target.card.reasoning:
        # Not every account may use these, so they are requested only if the owner configures it.
        body["reasoning"] = {"summary": "auto"}
    if target.card.reasoning or thinks(target.model):
        body["include"] = ["reasoning.encrypted_content"]
    body["store"] = False
    body["stream"] = True
    return body


def _tool(tool: ToolSpec, target: ModelTarget, names: ToolNames) -> JsonObject:
    # By default this dialect accepts only schemas that list all their properties.
    return {
        "type": "function",
        "name": names.out(tool.name),
        "description": tool.description,
        "parameters": parameters(tool, target),
        "strict": False,
    }


def _items(prompt: Prompt, target: ModelTarget, names: ToolNames) -> Iterator[JsonObject]:
    vision = bool(target.card.vision)
    documents: list[JsonObject] = []
    for message in prompt.messages:
        if message.role is not Role.TOOL and documents:
            yield _pictures_of_tools(documents)
            documents = []
        match message.role:
            case Role.USER:
                pictures = list(_pictures(message, prompt, vision=vision))
                text = {"type": "input_text", "text": message.text}
                yield {"role": "user", "content": [text, *pictures] if pictures else message.text}
            case Role.ASSISTANT:
                yield from _assistant(message, target, names)
            case Role.TOOL:
                yield {"type": "function_call_output", "call_id": message.call_id or "", "output": message.text}
                documents += _pictures(message, prompt, vision=vision)
    if documents:
        yield _pictures_of_tools(documents)


def _assistant(message: Message, target: ModelTarget, names: ToolNames) -> Iterator[JsonObject]:
    if not message.text and not message.calls:
        return  # reasoning must be followed by its result
    for reasoning in message.reasoning:
        if is_own(reasoning, NAME, target):
            sealed = {name: reasoning.data.get(name) for name in ("encrypted_content", "summary")}
            yield {"type": "reasoning", **sealed}
    if message.text:
        yield {"role": "assistant", "content": message.text}
    for call in message.calls:
        yield {
            "type": "function_call",
            "call_id": call.call_id,
            "name": names.out(call.tool),
            "arguments": written(call),
        }


def _pictures_of_tools(pictures: list[JsonObject]) -> JsonObject:
    # Nothing may come between the results of one turn.
    return {"role": "user", "content": [{"type": "input_text", "text": "The images of these results:"}, *pictures]}


def _pictures(message: Message, prompt: Prompt, *, vision: bool) -> Iterator[JsonObject]:
    for image in message.images:
        picture = prompt.images.get(image.digest)
        if vision and picture is not None:
            yield {"type": "input_image", "image_url": data_url(image.media_type, picture)}
        else:
            yield {"type": "input_text", "text": f"[an image ({image.media_type}) that cannot be shown]"}
