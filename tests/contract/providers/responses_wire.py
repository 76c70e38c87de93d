"""OpenAI Responses."""

import json

from palyra.core.model.catalog import DialectName
from palyra.core.model.prompt import StopReason
from palyra.core.spending.usage import Usage
from tests.contract.providers import openai_wire
from tests.contract.providers.openai_wire import CALLS
from tests.contract.providers.wire import Heard, Wire

SEALED = "gAAAAABoISQ24OyVRYbkYfukdJoqdzWT-3uiErKInHDC-lgAaXeky44N77j7aibc="


def _event(type_: str, **fields: object) -> bytes:
    data = json.dumps({"type": type_, "sequence_number": 5, **fields})
    return f"event: {type_}\ndata: {data}\n\n".encode()


def _failed(words: str) -> bytes:
    error = {"code": "server_error", "message": words}
    return _event("response.failed", response={"id": "resp_1", "status": "failed", "error": error, "output": []})


WIRE = Wire(
    dialect=DialectName.RESPONSES,
    model="gpt-5",
    path="/v1/responses",
    key_header="authorization",
    turns={
        "text": Heard(text="Grüße aus Wien 🎻.", usage=Usage(input_tokens=19, output_tokens=10)),
        "calls": Heard(calls=CALLS, stop=StopReason.CALLS, usage=Usage(input_tokens=82, output_tokens=34)),
        "reasoning": Heard(
            text="Four.",
            reasoning="Two and two.",
            shown_again=(
                {
                    "encrypted_content": SEALED,
                    "summary": [{"type": "summary_text", "text": "Two and two."}],
                    "by": "acme/gpt-5",
                },
            ),
            usage=Usage(input_tokens=12, output_tokens=40, reasoning_tokens=36),
        ),
        "cached": Heard(text="Yes.", usage=Usage(input_tokens=2006, output_tokens=300, cached_tokens=1920)),
        "refusal": Heard(
            text="I can't help with that.",
            stop=StopReason.REFUSED,
            usage=Usage(input_tokens=20, output_tokens=9),
        ),
        "length": Heard(text="Once upon", stop=StopReason.LENGTH, usage=Usage(input_tokens=9, output_tokens=2)),
        "filtered": Heard(text="How", stop=StopReason.REFUSED, usage=Usage(input_tokens=9, output_tokens=1)),
        "at_once": Heard(
            text="Whole",
            calls=(("time.now", {}),),
            stop=StopReason.CALLS,
            usage=Usage(input_tokens=7, output_tokens=3),
        ),
    },
    refusals=openai_wire.WIRE.refusals,
    piece=_event("response.output_text.delta", item_id="msg_1", output_index=0, content_index=0, delta="la "),
    thought=_event("response.reasoning_summary_text.delta", item_id="rs_1", output_index=0, delta="hm " * 1000),
    sealed=_event(
        "response.output_item.done",
        output_index=0,
        item={"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x" * 40_000},
    ),
    argument=_event("response.function_call_arguments.delta", item_id="fc_1", output_index=0, delta="x" * 4000),
    begin=_event("response.created", response={"id": "resp_1", "status": "in_progress", "output": []}),
    error_inside=_failed,
    models=openai_wire.WIRE.models,
)
