"""Builds the requests of the Gemini API.

Gemini signs its reasoning on the part of the answer that followed: a call, a text, or a thought that it shows. A stored
signature has its position, after how many characters and calls; it is sent back there.
"""

import base64
import re
from collections.abc import Iterator

import msgspec

from palyra.core.model.prompt import Image, Message, Prompt, Role, ToolChoice
from palyra.core.tool import JsonObject
from palyra.providers.dialect import AS_JSON, ModelTarget
from palyra.providers.dialects.gemini_schema import reduced
from palyra.providers.dialects.partial_calls import names_of
from palyra.providers.dialects.tool_names import ToolNames

NAME = "gemini"
UNSIGNED = "skip_thought_signature_validator"
"""The value that Google documents for calls that Gemini did not make itself, and so did not sign."""
IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/webp", "image/heic", "image/heif"})
RESULT_IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/webp"})
EMPTY = "(an empty message)"
UNSEEN = "(an image that cannot be shown here)"

_NEWEST = (99, 0)
_NUMBER = re.compile(r"(?:^|[-/])(\d{1,2})(?:\.(\d{1,2}))?(?=$|[-:@])")
_MODES = {ToolChoice.REQUIRED: "ANY", ToolChoice.NONE: "NONE"}


def version_of(model: str) -> tuple[int, int]:
    """Return the version of Gemini in a name, as in `gemini-2.5-pro`; without one it is the newest.

    A model that is not Gemini counts as older than all of them, so that only the oldest features are used.
    """
    if "gemini" not in model:
        return 0, 0
    match = _NUMBER.search(model)
    return (int(match[1]), int(match[2] or 0)) if match is not None else _NEWEST


def body_of(prompt: Prompt, target: ModelTarget) -> JsonObject:
    """Return the body of the request."""
    names, options = names_of(prompt), prompt.options
    limit = min(options.max_output_tokens or target.max_output_tokens, target.max_output_tokens)
    config: JsonObject = {"maxOutputTokens": limit}
    if options.temperature is not None:
        config["temperature"] = options.temperature
    if options.top_p is not None:
        config["topP"] = options.top_p
    if stop := [text for text in options.stop if text]:
        config["stopSequences"] = stop
    if target.card.reasoning:
        config["thinkingConfig"] = {"includeThoughts": True}
    offered = prompt.tools if options.schema is None or options.choice is not ToolChoice.NONE else ()
    system = prompt.system
    if options.schema is not None:
        schema = reduced(options.schema)
        if offered and version_of(target.model) < (3, 0):
            # Those accept tools or a schema, not both.
            system = "\n\n".join(part for part in (system, AS_JSON + msgspec.json.encode(schema).decode()) if part)
        else:
            config |= {"responseMimeType": "application/json", "responseJsonSchema": schema}
    body: JsonObject = {"contents": _contents(prompt, target, names), "generationConfig": config}
    if system.strip() and "gemma" in target.model:
        # Gemma has no system prompt; instructions come in the user's message.
        body["contents"].insert(0, {"role": "user", "parts": [{"text": system}]})
    elif system.strip():
        body["systemInstruction"] = {"parts": [{"text": system}]}
    if offered:
        declared = [_declared(names.out(tool.name), tool.description, tool.parameters) for tool in offered]
        body["tools"] = [{"functionDeclarations": declared}]
        if options.choice in _MODES:
            body["toolConfig"] = {"functionCallingConfig": {"mode": _MODES[options.choice]}}
    return body


def _declared(name: str, description: str, parameters: JsonObject) -> JsonObject:
    declared: JsonObject = {"name": name, "description": description}
    schema = reduced(parameters)
    # A tool without arguments has no schema.
    if schema.get("properties") or schema.get("additionalProperties") or schema.get("anyOf"):
        declared["parametersJsonSchema"] = {"type": "object"} | schema
    return declared


def _contents(prompt: Prompt, target: ModelTarget, names: ToolNames) -> list[JsonObject]:
    contents: list[JsonObject] = []
    called: dict[str, str] = {}
    results: dict[str, list[JsonObject]] = {}
    """The results of the previous step, by their calls, in the order of the calls."""
    for message in prompt.messages:
        if message.role is not Role.TOOL:
            contents += _answered(results)
            results = {}
        match message.role:
            case Role.ASSISTANT:
                for call in message.calls:
                    called[call.call_id] = names.out(call.tool)
                    results[call.call_id] = []
                if parts := _model(message, target, names):
                    contents.append({"role": "model", "parts": parts})
            case Role.TOOL:
                results.setdefault(message.call_id or "", []).extend(_result(message, prompt, target, called))
            case Role.USER:
                contents.append({"role": "user", "parts": _user_content(message, prompt, target) or [{"text": EMPTY}]})
    return _in_turns(contents + _answered(results))


def _in_turns(contents: list[JsonObject]) -> list[JsonObject]:
    """Return the contents with a person first, and consecutive messages of the model merged: its calls must follow a
    person's message, or results."""
    made: list[JsonObject] = []
    for content in contents:
        if not made and content["role"] == "model":
            made.append({"role": "user", "parts": [{"text": EMPTY}]})
        if made and made[-1]["role"] == content["role"] == "model":
            made[-1] = {"role": "model", "parts": [*made[-1]["parts"], *content["parts"]]}
        else:
            made.append(content)
    return made


def _answered(results: dict[str, list[JsonObject]]) -> list[JsonObject]:
    """Return the results of a step as one content: all of its calls, and then the images next to them."""
    parts = [part for documents in results.values() for part in documents]
    ordered = sorted(parts, key=lambda part: "functionResponse" not in part)
    return [{"role": "user", "parts": ordered}] if ordered else []


def _user_content(message: Message, prompt: Prompt, target: ModelTarget) -> list[JsonObject]:
    parts = [_image(image, prompt, target) or {"text": UNSEEN} for image in message.images]
    return [*parts, {"text": message.text}] if message.text.strip() else parts


def _image(image: Image, prompt: Prompt, target: ModelTarget) -> JsonObject | None:
    content = prompt.images.get(image.digest)
    if content is None or not target.card.vision or image.media_type not in IMAGE_TYPES:
        return None
    return {"inlineData": {"mimeType": image.media_type, "data": base64.b64encode(content).decode()}}


def _result(message: Message, prompt: Prompt, target: ModelTarget, called: dict[str, str]) -> Iterator[JsonObject]:
    name = called.get(message.call_id or "")
    if name is None:
        # There is no call for it; as a result it would be rejected.
        yield {"text": message.text or EMPTY}
        return
    output: JsonObject = {"output": message.text}
    images = [(image, _image(image, prompt, target)) for image in message.images]
    response: JsonObject = {"name": name, "response": output}
    # From 3 on images are part of the result; before, they are separate parts.
    inside = version_of(target.model) >= (3, 0)
    own = [part for image, part in images if part is not None and inside and image.media_type in RESULT_IMAGE_TYPES]
    if own:
        response["parts"] = own
    yield {"functionResponse": response}
    for _, part in images:
        if part is None or part not in own:
            yield part or {"text": UNSEEN}


def _model(message: Message, target: ModelTarget, names: ToolNames) -> list[JsonObject]:
    """Return the model's text and calls, with signatures in their original position."""
    parts: list[JsonObject] = []
    signed: dict[int, str] = {}
    chars = 0
    for thought in message.reasoning:
        if thought.dialect != NAME or thought.data.get("model") != target.model:
            continue
        match thought.data:
            case {"call": int(place), "signature": str(signature)}:
                signed[place] = signature
            case {"text": int(upto), "signature": str(signature)} if upto >= chars:
                # A signature may come without any text; it belongs after the text before it.
                parts.append({"text": message.text[chars:upto], "thoughtSignature": signature})
                chars = upto
            case {"thought": True, "signature": str(signature)}:
                parts.append({"text": thought.text, "thought": True, "thoughtSignature": signature})
            case _:
                pass
    if (rest := message.text[chars:]).strip():
        parts.append({"text": rest})
    for number, call in enumerate(message.calls):
        part: JsonObject = {"functionCall": {"name": names.out(call.tool), "args": call.arguments}}
        if number in signed:
            part["thoughtSignature"] = signed[number]
        elif number == 0 and version_of(target.model) >= (3, 0):
            part["thoughtSignature"] = UNSIGNED
        parts.append(part)
    return parts
