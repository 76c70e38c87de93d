"""What is sent in Responses, and what the odd events of its answers mean."""

import json

import pytest
from msgspec import structs

from palyra.core.model.prompt import GenerationOptions, Image, Message, Prompt, Role, StopReason, ToolChoice, TurnDone
from palyra.core.tool import JsonObject, ToolSpec
from palyra.providers.base import FailureKind, ProviderFailed
from palyra.providers.dialects.responses import DIALECT
from tests.unit.providers.conversation import a_call, a_prompt, assistant, result, user
from tests.unit.providers.reading import calls_of, end_of, kept, read, sent, target_of, text_of, thought_of

TARGET = target_of(DIALECT, "gpt-5")
PROMPT = a_prompt("hello")
READ = ToolSpec(name="files.read", description="Read a file.", parameters={})


def text(words: str) -> JsonObject:
    return {"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "delta": words}


def done(**response: object) -> JsonObject:
    return {"type": "response.completed", "response": {"status": "completed", "output": [], **response}}


def test_a_conversation_is_sent_as_items() -> None:
    prompt = Prompt(
        system="Be brief.",
        tools=(READ,),
        messages=(
            user("look"),
            assistant("I look.", calls=(a_call("files.read", {"path": "a"}),)),
            result("nothing"),
            user("thanks"),
        ),
    )

    body = sent(DIALECT, prompt, TARGET)

    assert body["instructions"] == "Be brief."
    assert body["tools"] == [
        {
            "type": "function",
            "name": "files_read",
            "description": "Read a file.",
            "parameters": {"type": "object", "properties": {}},
            "strict": False,
        }
    ]
    assert body["input"] == [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": "I look."},
        {"type": "function_call", "call_id": "c1", "name": "files_read", "arguments": '{"path":"a"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "nothing"},
        {"role": "user", "content": "thanks"},
    ]
    assert (body["stream"], body["store"]) == (True, False)


def test_a_longer_conversation_begins_with_the_same_bytes() -> None:
    short = a_prompt("one", assistant("two"))
    long = a_prompt("one", assistant("two"), "three", assistant("four"))

    before, said, _ = DIALECT.request(short, TARGET).body.partition(b'{"role":"assistant","content":"two"}')

    assert said
    assert DIALECT.request(long, TARGET).body.startswith(before + said + b",")


def test_sealed_thoughts_are_asked_of_models_that_think_and_summaries_where_the_owner_wants_them() -> None:
    thinking, plain, told = (
        sent(DIALECT, PROMPT, target)
        for target in (TARGET, target_of(DIALECT, "gpt-4.1"), target_of(DIALECT, "gpt-5", reasoning=True))
    )

    assert thinking["include"] == told["include"] == ["reasoning.encrypted_content"]
    assert "include" not in plain
    assert "reasoning" not in thinking
    assert told["reasoning"] == {"summary": "auto"}


def test_options_are_sent_as_this_dialect_names_them() -> None:
    options = GenerationOptions(
        max_output_tokens=50, temperature=0.2, choice=ToolChoice.NONE, schema={"type": "object"}
    )
    body = sent(DIALECT, Prompt(system="", tools=(READ,), messages=(user("hi"),), options=options), TARGET)

    assert (body["max_output_tokens"], body["temperature"], body["tool_choice"]) == (50, 0.2, "none")
    assert body["text"]["format"]["type"] == "json_schema"
    assert body["text"]["format"]["schema"] == {"type": "object"}


def test_pictures_are_sent_as_parts() -> None:
    picture = Image(digest="d", media_type="image/png", size=3)
    messages = (Message(role=Role.USER, text="see", images=(picture,)),)
    prompt = Prompt(system="", tools=(), messages=messages, images={"d": b"png"})

    assert sent(DIALECT, prompt, TARGET)["input"][0]["content"] == [
        {"type": "input_text", "text": "see"},
        {"type": "input_image", "image_url": "data:image/png;base64,cG5n"},
    ]


SEALED: JsonObject = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
THOUGHT: JsonObject = {"type": "response.output_item.done", "item": SEALED}


@pytest.mark.parametrize(
    "pieces",
    [
        [THOUGHT, text("Yes."), done()],
        [THOUGHT, text("Yes."), done(output=[SEALED])],
        [text("Yes."), done(output=[SEALED])],
    ],
    ids=["as it comes", "twice", "at the end"],
)
def test_sealed_thoughts_go_back_to_who_thought_them(pieces: list[JsonObject]) -> None:
    events = read(DIALECT, PROMPT, TARGET, pieces)
    said = Message(role=Role.ASSISTANT, text="Yes.", reasoning=kept(events))
    silent = Message(role=Role.ASSISTANT, text="", reasoning=kept(events))

    mine = sent(DIALECT, a_prompt(said), TARGET)["input"]
    others = sent(DIALECT, a_prompt(said), target_of(DIALECT, "o3"))["input"]

    assert mine == [
        {"type": "reasoning", "encrypted_content": "gAAA", "summary": []},
        {"role": "assistant", "content": "Yes."},
    ]
    assert others == [{"role": "assistant", "content": "Yes."}]
    assert sent(DIALECT, a_prompt(silent), TARGET)["input"] == []


def test_the_parts_of_a_thought_are_kept_apart() -> None:
    events = read(
        DIALECT,
        PROMPT,
        TARGET,
        [
            {"type": "response.reasoning_summary_part.added", "summary_index": 0, "part": {}},
            {"type": "response.reasoning_summary_text.delta", "summary_index": 0, "delta": "One."},
            {"type": "response.reasoning_summary_part.added", "summary_index": 1, "part": {}},
            {"type": "response.reasoning_summary_text.delta", "summary_index": 1, "delta": "Two."},
            {"type": "response.reasoning_text.delta", "delta": " Three."},
            done(),
        ],
    )

    assert thought_of(events) == "One.\n\nTwo. Three."


def test_events_that_nobody_knows_yet_are_passed_over() -> None:
    events = read(DIALECT, PROMPT, TARGET, [{"type": "response.new.thing", "delta": {"a": 1}}, text("x"), done()])

    assert text_of(events) == "x"
    assert end_of(events).stop is StopReason.END


def test_a_call_whose_pieces_are_known_by_their_place_alone_is_one() -> None:
    events = read(
        DIALECT,
        PROMPT,
        TARGET,
        [
            {
                "type": "response.output_item.added",
                "output_index": 1,
                "item": {"type": "function_call", "call_id": "c", "name": "x", "arguments": ""},
            },
            {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": '{"n"'},
            {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": ":1}"},
            done(),
        ],
    )

    assert [(call.call_id, call.tool, call.arguments) for call in calls_of(events)] == [("c", "x", {"n": 1})]
    assert end_of(events).stop is StopReason.CALLS


@pytest.mark.parametrize("cut", range(1, 9))
def test_an_answer_ends_where_the_caller_wants_it_to(cut: int) -> None:
    words = "one, two, STOP three"
    prompt = Prompt(system="", tools=(), messages=(user("hi"),), options=GenerationOptions(stop=("STOP", "never")))
    pieces = [text(words[start : start + cut]) for start in range(0, len(words), cut)]
    reader = DIALECT.reader(prompt, TARGET)

    said = []
    for piece in pieces:
        said += list(reader.feed("", _bytes(piece)))
        if isinstance(said[-1] if said else None, TurnDone):
            break

    assert text_of(said) == "one, two, "
    assert end_of(said).stop is StopReason.END


def test_what_only_looks_like_the_end_is_said_in_the_end() -> None:
    prompt = Prompt(system="", tools=(), messages=(user("hi"),), options=GenerationOptions(stop=("STOP",)))

    events = read(DIALECT, prompt, TARGET, [text("a ST"), text("O"), done()])

    assert text_of(events) == "a STO"


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"type": "error", "code": "rate_limit_exceeded", "message": "Slow down"}, FailureKind.RATE_LIMIT),
        ({"type": "error", "error": {"code": "server_error", "message": "Ouch"}}, FailureKind.UNAVAILABLE),
        (
            {"type": "response.failed", "response": {"error": {"code": "context_length_exceeded", "message": "Long"}}},
            FailureKind.CONTEXT_TOO_LONG,
        ),
        (
            {"type": "response.failed", "response": {"error": {"code": "insufficient_quota", "message": "Pay"}}},
            FailureKind.QUOTA,
        ),
        ({"type": "response.failed", "response": {}}, FailureKind.UNAVAILABLE),
    ],
)
def test_an_answer_that_fails_is_of_its_kind(event: JsonObject, kind: FailureKind) -> None:
    with pytest.raises(ProviderFailed) as caught:
        read(DIALECT, PROMPT, TARGET, [text("x"), event])

    assert caught.value.kind is kind


def _bytes(event: JsonObject) -> bytes:
    return json.dumps(event).encode()


def test_an_answer_is_not_asked_to_be_shorter_than_it_can() -> None:
    prompt = structs.replace(a_prompt("hello"), options=GenerationOptions(max_output_tokens=5))

    assert sent(DIALECT, prompt, target_of(DIALECT, "gpt-5"))["max_output_tokens"] == 16
