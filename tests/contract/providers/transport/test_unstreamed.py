"""Servers that answer at once, whatever they are asked for."""

import json
from typing import Any

import pytest

from palyra.core.model.catalog import DialectName
from palyra.core.model.prompt import StopReason
from palyra.core.spending.usage import Usage
from palyra.providers.base import FailureKind
from tests.contract.providers.conftest import Asking, failing, said
from tests.contract.providers.wire import Heard, Wire, heard, wires
from tests.support.model_server import ModelServer, answer

of_responses = pytest.mark.parametrize(
    "wire",
    [wire for wire in wires() if wire.dialect is DialectName.RESPONSES],
    indirect=True,
    ids=lambda wire: wire.name,
)
CALL = ("files.read", {"path": "a.txt"})
ARGUMENTS = json.dumps(CALL[1])
FUNCTION = {"name": "files_read", "arguments": ARGUMENTS}
WHOLE: dict[DialectName, Any] = {
    DialectName.OPENAI: {
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Let me see.",
                    "tool_calls": [{"id": "c1", "type": "function", "function": FUNCTION}],
                },
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 3},
    },
    DialectName.RESPONSES: {
        "object": "response",
        "status": "completed",
        "output": [
            {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "Let me see."}]},
            {"type": "function_call", "id": "f", "call_id": "c1", **FUNCTION},
        ],
        "usage": {"input_tokens": 5, "output_tokens": 3},
    },
    DialectName.ANTHROPIC: {
        "type": "message",
        "role": "assistant",
        "content": [
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "c1", "name": "files_read", "input": CALL[1]},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 5, "output_tokens": 3},
    },
    DialectName.GEMINI: [
        {"candidates": [{"content": {"parts": [{"text": "Let me see."}]}}]},
        {
            "candidates": [
                {
                    "content": {"parts": [{"functionCall": {"name": "files_read", "args": CALL[1]}}]},
                    "finishReason": "STOP",
                }
            ],
            "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 3},
        },
    ],
}


@pytest.mark.parametrize("indent", [None, 2])
async def test_a_whole_answer_is_one(indent: int | None, wire: Wire, server: ModelServer, asking: Asking) -> None:
    body = json.dumps(WHOLE[wire.dialect], indent=indent)
    server.play(answer(200, body, headers={"Content-Type": "application/json"}))

    expected = Heard(
        text="Let me see.", calls=(CALL,), stop=StopReason.CALLS, usage=Usage(input_tokens=5, output_tokens=3)
    )
    assert heard(await said(asking())) == expected


@pytest.mark.parametrize("body", [{}, [], {"choices": []}, {"choices": [{}]}, {"object": "list"}, {"content": []}, "x"])
async def test_what_is_no_answer_is_none(body: Any, wire: Wire, server: ModelServer, asking: Asking) -> None:
    server.play(answer(200, json.dumps(body), headers={"Content-Type": "application/json"}))

    assert (await failing(asking())).kind is FailureKind.MALFORMED


@of_responses
@pytest.mark.parametrize("status", ["queued", "in_progress", "cancelled", "failed"])
async def test_what_is_still_being_made_is_no_answer(
    status: str, wire: Wire, server: ModelServer, asking: Asking
) -> None:
    body = json.dumps({**WHOLE[wire.dialect], "status": status})
    server.play(answer(200, body, headers={"Content-Type": "application/json"}))

    assert (await failing(asking())).kind is FailureKind.UNAVAILABLE


@of_responses
async def test_what_was_cut_short_is_not_whole_even_if_nobody_says_why(
    wire: Wire, server: ModelServer, asking: Asking
) -> None:
    body = json.dumps({**WHOLE[wire.dialect], "status": "incomplete"})
    server.play(answer(200, body, headers={"Content-Type": "application/json"}))

    assert heard(await said(asking())).stop is StopReason.LENGTH
