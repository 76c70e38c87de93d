"""The provider "scripted": a deterministic replacement for a language model, for tests and demos, driven by a file.

The script is JSON, or TOML if its name ends so. The first rule whose `when` matches is used; if none does, `default`
is. The output depends on the prompt alone, never on earlier requests: after a restart the same conversation gets the
same answer.

    {
      "rules": [
        {
          "when": {"contains": "my files"},
          "turns": [
            [
              {"do": "text", "text": "Let me look.", "chunk": 4, "delay_ms": 20},
              {"do": "call", "tool": "files.list", "arguments": {"folder": "docs"}}
            ],
            [{"do": "text", "text": "You have: {result}"}]
          ]
        },
        {
          "when": {"equals": "break", "turn": 0},
          "actions": [{"do": "text", "text": "Well"}, {"do": "fail", "kind": "network", "message": "The line is cut."}]
        }
      ],
      "default": [{"do": "text", "text": "You said: {input}"}]
    }

Besides `rules` and `default`, a script may set `model` and `window_tokens`.

A rule has `actions` for one turn, or `turns`, a list of such lists indexed by the number of the turn; beyond the last
the rule does not match. The turn is the count of assistant messages since the last user message: the first is 0.

`when` may have these conditions, and all must match: `equals`, `contains` and `matches` (a regular expression, found
anywhere), each about the last user message; `result`, what the last tool result since then contains; `turn`; `input`,
the count of user messages so far, from 1; `tools`, whether tools are offered. An empty `when`, or none, always matches.

| `do` | what it does | with |
|---|---|---|
| `text` | says `text`, at once or in chunks | `chunk` characters at a time, `delay_ms` between them |
| `call` | calls `tool` | `arguments`, or `raw`: their text as a model would write it; `call_id` |
| `delay` | waits | `ms` |
| `fail` | fails; must be last | `kind` (see `FailureKind`), `message`, `retry_after_ms` |
| `endless` | says `text` until it is stopped; must be last | `delay_ms` before each |
| `stop` | ends the turn; must be last | `reason` (see `StopReason`), `input_tokens`, `output_tokens` |

In texts and in the strings of arguments `{input}` is the last user message and `{result}` the last tool result.
Without `stop` a turn ends for `calls` if it made any, else for `end`, and its tokens are estimated.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta, Struct

from palyra.core.errors import Invalid
from palyra.core.model.catalog import Capabilities
from palyra.core.model.prompt import CallProposed, Message, ModelEvent, Prompt, Role, StopReason, TextDelta, TurnDone
from palyra.core.spending.usage import Usage
from palyra.core.tool import JsonObject
from palyra.providers.base import FailureKind, ProviderFailed
from palyra.providers.tool_calls import call_id, read_arguments
from palyra.providers.usage_estimate import estimate

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]


class ScriptInvalid(Invalid):
    """The script is not valid."""


class _ScriptAction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="do"):
    """The base of all actions."""


class ScriptText(_ScriptAction, frozen=True, kw_only=True, tag="text"):
    """Say something."""

    text: str
    chunk: Positive | None = None
    delay_ms: Count = 0


class ScriptCall(_ScriptAction, frozen=True, kw_only=True, tag="call"):
    """Call a tool."""

    tool: str
    arguments: JsonObject = {}
    raw: str | None = None
    call_id: str | None = None


class ScriptDelay(_ScriptAction, frozen=True, kw_only=True, tag="delay"):
    """Wait."""

    ms: Count


class ScriptFailure(_ScriptAction, frozen=True, kw_only=True, tag="fail"):
    """Fail, before or within the answer."""

    kind: FailureKind = FailureKind.UNAVAILABLE
    message: str = "The script makes the model fail here."
    retry_after_ms: Count = 1000


class ScriptEndless(_ScriptAction, frozen=True, kw_only=True, tag="endless"):
    """Write forever."""

    text: Annotated[str, Meta(min_length=1)]
    delay_ms: Count = 0


class ScriptStop(_ScriptAction, frozen=True, kw_only=True, tag="stop"):
    """End the turn with a given reason."""

    reason: StopReason | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None


Action = ScriptText | ScriptCall | ScriptDelay | ScriptFailure | ScriptEndless | ScriptStop


class ScriptCondition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The conditions of a rule; all that are set must hold."""

    equals: str | None = None
    contains: str | None = None
    matches: str | None = None
    result: str | None = None
    turn: Count | None = None
    input: Positive | None = None
    tools: bool | None = None


class ScriptRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The actions for a condition."""

    when: ScriptCondition = ScriptCondition()
    actions: tuple[Action, ...] | None = None
    turns: tuple[tuple[Action, ...], ...] | None = None


class Script(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    rules: tuple[ScriptRule, ...] = ()
    default: tuple[Action, ...] = (ScriptText(text="The script has no rule for this."),)
    model: str = "scripted"
    window_tokens: Positive = 100_000


class ScriptedProvider:
    """Runs a script."""

    name = "scripted"

    def __init__(self, script: Script) -> None:
        self._script = script
        self.model = script.model
        self.capabilities = Capabilities(
            window_tokens=script.window_tokens, max_output_tokens=max(1, script.window_tokens // 4), vision=True
        )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a script, or raise `ScriptInvalid` naming the file and the position in it. Blocks."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ScriptInvalid(f"The script {path} cannot be read: {error.strerror}.") from error
        return cls(parse(content, source=str(path)))

    async def stream(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        """Run the actions that match the conversation."""
        spoken = ""
        calls = 0
        stop = ScriptStop()
        for action in choose(self._script, prompt):
            match action:
                case ScriptText():
                    text = _fill(action.text, prompt)
                    for number, piece in enumerate(_chunks(text, action.chunk)):
                        if number and action.delay_ms:
                            await asyncio.sleep(action.delay_ms / 1000)
                        yield TextDelta(piece)
                    spoken += text
                case ScriptCall():
                    yield _propose(action, prompt, index=calls)
                    calls += 1
                case ScriptDelay():
                    await asyncio.sleep(action.ms / 1000)
                case ScriptFailure():
                    wait = timedelta(milliseconds=action.retry_after_ms)
                    raise ProviderFailed(action.message, kind=action.kind, retry_after=wait)
                case ScriptEndless():
                    while True:
                        # Even without a delay other tasks must get a turn: nothing else here ever waits.
                        await asyncio.sleep(action.delay_ms / 1000)
                        yield TextDelta(_fill(action.text, prompt))
                case ScriptStop():
                    stop = action
        yield TurnDone(
            stop=stop.reason or (StopReason.CALLS if calls else StopReason.END),
            usage=_usage(stop, prompt, spoken),
        )


def parse(content: bytes, *, source: str) -> Script:
    """Decode a script, TOML if the name of its source ends so, or raise `ScriptInvalid` naming source and position."""
    try:
        if source.endswith(".toml"):
            script = msgspec.toml.decode(content, type=Script)
        else:
            script = msgspec.json.decode(content, type=Script)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ScriptInvalid(f"The script {source} is not valid: {error}.") from error
    for location, fault in _faults(script):
        raise ScriptInvalid(f"The script {source} is not valid: {fault} - at `{location}`.")
    return script


def choose(script: Script, prompt: Prompt) -> tuple[Action, ...]:
    """Return the next actions of the script in this conversation."""
    since = _since_input(prompt)
    turn = sum(message.role is Role.ASSISTANT for message in since)
    for rule in script.rules:
        if not _fits(rule.when, prompt, turn=turn, result=_last(since, Role.TOOL)):
            continue
        if rule.actions is not None:
            return rule.actions
        if rule.turns is not None and turn < len(rule.turns):
            return rule.turns[turn]
    return script.default


def _fits(when: ScriptCondition, prompt: Prompt, *, turn: int, result: str) -> bool:
    text = _last(prompt.messages, Role.USER)
    inputs = sum(message.role is Role.USER for message in prompt.messages)
    return (
        (when.equals is None or when.equals == text)
        and (when.contains is None or when.contains in text)
        and (when.matches is None or re.search(when.matches, text) is not None)
        and (when.result is None or when.result in result)
        and (when.turn is None or when.turn == turn)
        and (when.input is None or when.input == inputs)
        and (when.tools is None or when.tools == bool(prompt.tools))
    )


def _faults(script: Script) -> Iterator[tuple[str, str]]:
    """Yield the problems that the types cannot express, each with its position."""
    yield from _turn_faults("$.default", script.default)
    for number, rule in enumerate(script.rules):
        location = f"$.rules[{number}]"
        if (rule.actions is None) == (rule.turns is None):
            yield location, "a rule must have either `actions` or `turns`"
        try:
            re.compile(rule.when.matches or "")
        except re.error as error:
            yield f"{location}.when.matches", f"the regular expression is malformed: {error}"
        yield from _turn_faults(f"{location}.actions", rule.actions or ())
        for turn, actions in enumerate(rule.turns or ()):
            yield from _turn_faults(f"{location}.turns[{turn}]", actions)


def _turn_faults(location: str, actions: tuple[Action, ...]) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for number, action in enumerate(actions):
        here = f"{location}[{number}]"
        if isinstance(action, ScriptFailure | ScriptEndless | ScriptStop) and number < len(actions) - 1:
            yield here, "nothing can come after this action"
        if isinstance(action, ScriptCall):
            if action.raw is not None and action.arguments:
                yield here, "a call must have either `arguments` or `raw`"
            if action.call_id in seen:
                yield here, f"the call_id {action.call_id!r} was already used in this turn"
            if action.call_id is not None:
                seen.add(action.call_id)


def _propose(call: ScriptCall, prompt: Prompt, *, index: int) -> CallProposed:
    arguments, malformed = (_fill_all(call.arguments, prompt), "") if call.raw is None else read_arguments(call.raw)
    return CallProposed(
        call_id=call.call_id or call_id(prompt, index), tool=call.tool, arguments=arguments, malformed=malformed
    )


def _fill_all(value: Any, prompt: Prompt) -> Any:
    match value:
        case str():
            return _fill(value, prompt)
        case dict():
            return {key: _fill_all(part, prompt) for key, part in value.items()}
        case list():
            return [_fill_all(part, prompt) for part in value]
        case _:
            return value


def _usage(stop: ScriptStop, prompt: Prompt, spoken: str) -> Usage:
    if stop.input_tokens is not None and stop.output_tokens is not None:
        return Usage(input_tokens=stop.input_tokens, output_tokens=stop.output_tokens)
    guess = estimate(prompt, spoken)
    return Usage(
        input_tokens=guess.input_tokens if stop.input_tokens is None else stop.input_tokens,
        output_tokens=guess.output_tokens if stop.output_tokens is None else stop.output_tokens,
    )


def _fill(text: str, prompt: Prompt) -> str:
    # In one pass, so that a message which itself contains `{result}` is shown as it is.
    words = {"{input}": Role.USER, "{result}": Role.TOOL}
    return re.sub(r"\{(?:input|result)\}", lambda match: _last(prompt.messages, words[match[0]]), text)


def _since_input(prompt: Prompt) -> tuple[Message, ...]:
    for index in range(len(prompt.messages) - 1, -1, -1):
        if prompt.messages[index].role is Role.USER:
            return prompt.messages[index + 1 :]
    return prompt.messages


def _last(messages: tuple[Message, ...], role: Role) -> str:
    return next((message.text for message in reversed(messages) if message.role is role), "")


def _chunks(text: str, size: int | None) -> Iterator[str]:
    if size is None:
        yield from (text,) if text else ()
        return
    for start in range(0, len(text), size):
        yield text[start : start + size]
