"""`/v1` as programs see it that speak to OpenAI: the official client, against a real daemon."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from openai import (
    APIError,
    APIStatusError,
    AuthenticationError,
    BadRequestError,
    ConflictError,
    DefaultHttpxClient,
    InternalServerError,
    NotFoundError,
    OpenAI,
    PermissionDeniedError,
    RateLimitError,
)

from tests.e2e.conftest import NewDaemon
from tests.support.daemon import Daemon, until

Json = Any
Connect = Callable[..., OpenAI]

SCRIPT = {
    "rules": [
        {
            "when": {"contains": "weather", "result": "rain"},
            "actions": [{"do": "text", "text": "Take an umbrella: {result}."}],
        },
        {
            "when": {"contains": "weather", "turn": 0},
            "actions": [
                {"do": "text", "text": "Let me see."},
                {"do": "call", "tool": "time.now"},
                {"do": "call", "tool": "weather", "arguments": {"city": "Bern"}},
            ],
        },
        {
            "when": {"contains": "the time", "tools": True},
            "turns": [
                [{"do": "text", "text": "One moment."}, {"do": "call", "tool": "time.now"}],
                [{"do": "text", "text": "Now you know."}],
            ],
        },
        {
            "when": {"equals": "delegate it"},
            "turns": [
                [{"do": "call", "tool": "agent.delegate", "arguments": {"task": "write it"}}],
                [{"do": "text", "text": "Done."}],
            ],
        },
        {
            "when": {"contains": "write", "tools": True},
            "turns": [
                [{"do": "call", "tool": "files.write", "arguments": {"path": "n.txt", "text": "x"}}],
                [{"do": "text", "text": "Written."}],
            ],
        },
        {"when": {"equals": "slowly"}, "actions": [{"do": "text", "text": "a" * 200, "chunk": 1, "delay_ms": 20}]},
        {"when": {"equals": "for ever"}, "actions": [{"do": "endless", "text": "on ", "delay_ms": 20}]},
        {
            "when": {"equals": "break off"},
            "actions": [
                {"do": "text", "text": "Half an"},
                {"do": "delay", "ms": 200},
                {"do": "fail", "kind": "network", "message": "The line is cut."},
            ],
        },
        {"when": {"equals": "too much"}, "actions": [{"do": "fail", "kind": "rate_limit", "message": "Too much."}]},
        {"when": {"equals": "too long"}, "actions": [{"do": "fail", "kind": "context_too_long", "message": "Long."}]},
        {"when": {"equals": "no key"}, "actions": [{"do": "fail", "kind": "auth", "message": "No key."}]},
        {
            "when": {"equals": "count"},
            "actions": [
                {"do": "text", "text": "One"},
                {"do": "stop", "reason": "length", "input_tokens": 30, "output_tokens": 7},
            ],
        },
    ],
    "default": [{"do": "text", "text": "You said: {input}", "chunk": 3}],
}
WEATHER: Json = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
FLAT: Json = {"type": "function", **WEATHER["function"], "strict": False}
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAA"
    "AABJRU5ErkJggg=="
)


def said(text: str) -> list[Json]:
    return [{"role": "user", "content": text}]


@pytest.fixture
def daemon(new_sqlite_daemon: NewDaemon) -> Daemon:
    return new_sqlite_daemon(SCRIPT).start()


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes clients of a daemon, each with a token; none of them tries again by itself unless told to."""
    made: list[OpenAI] = []

    def client(daemon: Daemon, *, token: str | None = None, max_retries: int = 0) -> OpenAI:
        made.append(
            OpenAI(
                base_url=f"{daemon.address}/v1",
                api_key=token or daemon.token,
                max_retries=max_retries,
                timeout=60,
                http_client=DefaultHttpxClient(verify=False),
            )
        )
        return made[-1]

    yield client
    for one in made:
        one.close()


@pytest.fixture
def ai(daemon: Daemon, connect: Connect) -> OpenAI:
    return connect(daemon)


def someone_else(daemon: Daemon, name: str) -> str:
    asked = {"principal": f"user:{name}", "name": name}
    answer = httpx.post(f"{daemon.address}/admin/v1/tokens", headers=_owner(daemon), json=asked, verify=False)
    secret: str = answer.json()["secret"]
    return secret


def _owner(daemon: Daemon) -> dict[str, str]:
    return {"authorization": f"Bearer {daemon.token}"}


def kinds(daemon: Daemon, run_id: str) -> list[str]:
    return [line.kind for line in daemon.tape(f"/runs/{run_id}")]


# -- models


def test_agents_and_models_are_listed(ai: OpenAI) -> None:
    assert [model.id for model in ai.models.list()] == ["palyra", "palyra/main", "scripted/scripted"]
    assert ai.models.retrieve("palyra/main").owned_by == "palyra"
    with pytest.raises(NotFoundError):
        ai.models.retrieve("palyra/nobody")


@pytest.mark.parametrize("model", ["palyra", "palyra/main", "scripted", "scripted/scripted"])
def test_each_of_their_names_is_answered(ai: OpenAI, model: str) -> None:
    answer = ai.chat.completions.create(model=model, messages=said("Hello."))
    assert answer.choices[0].message.content == "You said: Hello."
    assert (answer.model, answer.choices[0].finish_reason) == (model, "stop")


def test_a_model_alone_has_no_tools_of_the_daemon(ai: OpenAI) -> None:
    """The rule that calls one wants tools to be offered."""
    answer = ai.chat.completions.create(model="scripted", messages=said("Tell me the time."))
    assert answer.choices[0].message.content == "You said: Tell me the time."


# -- chat


def test_a_call_is_a_run_on_the_tape(daemon: Daemon, ai: OpenAI) -> None:
    raw = ai.chat.completions.with_raw_response.create(model="palyra", messages=said("Hello."))
    run_id = raw.headers["x-palyra-run-id"]
    assert raw.parse().id == f"chatcmpl-{run_id}"
    (accepted, *_) = daemon.tape(f"/runs/{run_id}")
    assert (accepted.event["text"], accepted.event["channel"]) == ("Hello.", "v1")
    assert daemon.verify().ok


def test_a_stream_adds_up_to_the_same_answer(ai: OpenAI) -> None:
    asked = said("Tell me the time.")
    whole = ai.chat.completions.create(model="palyra", messages=asked)
    chunks = list(ai.chat.completions.create(model="palyra", messages=asked, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == "stop"
    told = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert told == whole.choices[0].message.content == "One moment.\n\nNow you know."


def test_a_stream_is_told_while_the_model_speaks(ai: OpenAI) -> None:
    with ai.chat.completions.create(model="palyra", messages=said("for ever"), stream=True) as stream:
        told = ""
        for chunk in stream:
            told += chunk.choices[0].delta.content or ""
            if len(told) > 20:
                break
    assert told.startswith("on on on")


def test_what_the_run_took_is_told(ai: OpenAI) -> None:
    answer = ai.chat.completions.create(model="palyra", messages=said("count"))
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (30, 7, 37)
    assert answer.choices[0].finish_reason == "length"
    streamed = ai.chat.completions.create(
        model="palyra", messages=said("count"), stream=True, stream_options={"include_usage": True}
    )
    *_, last = streamed
    assert last.usage == answer.usage
    assert not last.choices


def test_the_conversation_that_comes_along_is_seen(ai: OpenAI) -> None:
    """The last rule but the default one wants a result that stands before the last message."""
    past = [
        {"role": "system", "content": "Be brief."},
        *said("How is the weather?"),
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "rain"},
    ]
    answer = ai.chat.completions.create(model="palyra", messages=past)
    assert answer.choices[0].message.content == "Take an umbrella: rain."


def test_each_call_has_a_session_of_its_own_unless_one_is_named(daemon: Daemon, ai: OpenAI) -> None:
    for _ in range(2):
        ai.chat.completions.create(model="palyra", messages=said("Hello."))
        ai.chat.completions.create(model="palyra", messages=said("Hello."), user="ana")
        ai.chat.completions.create(model="palyra", messages=said("Hello."), extra_headers={"X-Palyra-Session": "mine"})
    keys = [session["key"] for session in daemon.sessions()]
    assert sorted(keys, key=str) == [None, None, "mine", "v1:user:ana"]


def test_pictures_come_in_the_request(daemon: Daemon, ai: OpenAI) -> None:
    def look(url: str) -> str:
        content: Json = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": url}}]
        raw = ai.chat.completions.with_raw_response.create(
            model="palyra", messages=[{"role": "user", "content": content}]
        )
        run_id: str = raw.headers["x-palyra-run-id"]
        return run_id

    (accepted, *_) = daemon.tape(f"/runs/{look(PIXEL)}")
    assert accepted.event["images"][0]["media_type"] == "image/png"
    inside = "http://127.0.0.1:7717/console/v1/status"
    for bad in (inside, "http://localhost/cat.png", "data:image/png;base64,????", "data:image/png;base64,aGVsbG8="):
        with pytest.raises(BadRequestError) as refused:
            look(bad)
        assert refused.value.param == "messages[0]"
        if bad.startswith("http"):
            assert f"The image at {bad} cannot be fetched" in str(refused.value)
            with pytest.raises(BadRequestError, match="cannot be fetched") as refused:
                ai.responses.create(
                    model="palyra",
                    input=[{"role": "user", "content": [{"type": "input_image", "detail": "auto", "image_url": bad}]}],
                )
            assert refused.value.param == "input[0]"


# -- the caller's own tools


def test_a_tool_of_the_caller_goes_to_the_caller_and_its_result_comes_back(daemon: Daemon, ai: OpenAI) -> None:
    messages = said("How is the weather?")
    raw = ai.chat.completions.with_raw_response.create(model="palyra", messages=messages, tools=[WEATHER])
    choice = raw.parse().choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Bern"})
    assert "tool_finished" in kinds(daemon, raw.headers["x-palyra-run-id"]), "our own tool is carried out, and not told"
    messages += [choice.message.model_dump(exclude_none=True), _result(call.id, "rain")]
    answer = ai.chat.completions.create(model="palyra", messages=messages, tools=[WEATHER])
    assert answer.choices[0].message.content == "Take an umbrella: rain."


def test_in_a_stream_the_calls_come_at_its_end(ai: OpenAI) -> None:
    stream = ai.chat.completions.create(
        model="scripted", messages=said("How is the weather?"), tools=[WEATHER], stream=True
    )
    chunks = [chunk.choices[0] for chunk in stream]
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
    assert [(call.index, call.function.name if call.function else None) for call in calls] == [(0, "weather")]
    assert chunks[-1].finish_reason == "tool_calls"


def test_in_a_named_session_the_results_alone_are_enough(ai: OpenAI) -> None:
    first = ai.chat.completions.create(
        model="palyra", messages=said("How is the weather?"), tools=[WEATHER], user="ana"
    )
    calls = first.choices[0].message.tool_calls
    assert calls is not None
    with pytest.raises(BadRequestError, match="does not answer a call"):
        ai.chat.completions.create(model="palyra", messages=[_result("strange", "rain")], user="ana")
    answer = ai.chat.completions.create(model="palyra", messages=[_result(calls[0].id, "rain")], user="ana")
    assert (answer.choices[0].message.content or "").startswith("Take an umbrella")


def _result(call_id: str, text: str) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


# -- responses


def test_a_response_is_gone_on_from(daemon: Daemon, ai: OpenAI) -> None:
    first = ai.responses.create(model="palyra", input="How is the weather?", tools=[FLAT])
    assert (first.status, first.output_text) == ("completed", "Let me see.")
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert json.loads(call.arguments) == {"city": "Bern"}
    output: Json = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
    second = ai.responses.create(model="palyra", input=output, previous_response_id=first.id)
    assert second.output_text.startswith("Take an umbrella")
    sessions = {daemon.run(one.id.removeprefix("resp_"))["session_id"] for one in (first, second)}
    assert len(sessions) == 1
    assert ai.responses.retrieve(second.id).output_text == second.output_text
    with pytest.raises(ConflictError, match="continued since"):
        ai.responses.create(model="palyra", input="And now?", previous_response_id=first.id)


def test_a_key_brings_the_answer_of_then_back_and_lets_nobody_go_on_from_long_ago(ai: OpenAI) -> None:
    first = ai.responses.create(model="palyra", input="Hello.")
    asked: Json = {"model": "palyra", "input": "And now?", "previous_response_id": first.id}
    second = ai.responses.create(**asked, extra_headers={"Idempotency-Key": "once"})
    assert ai.responses.create(**asked, extra_headers={"Idempotency-Key": "once"}).id == second.id
    with pytest.raises(ConflictError, match="continued since"):
        ai.responses.create(**asked, extra_headers={"Idempotency-Key": "twice"})


def test_a_response_is_told_event_by_event(ai: OpenAI) -> None:
    events = list(ai.responses.create(model="palyra", input="How is the weather?", tools=[FLAT], stream=True))
    assert [event.sequence_number for event in events] == [*range(len(events))]
    told = [event.type for event in events]
    assert told[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert told[-5:] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    last = events[-1]
    assert last.type == "response.completed"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == last.response.output_text == "Let me see."


def test_the_helper_of_the_client_for_streams_understands_ours(ai: OpenAI) -> None:
    with ai.responses.stream(model="palyra", input="Hello.") as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == "You said: Hello."


# -- errors


def test_errors_are_those_that_the_client_knows(daemon: Daemon, ai: OpenAI, connect: Connect) -> None:
    with pytest.raises(AuthenticationError) as stranger:
        connect(daemon, token="wrong").models.list()
    assert stranger.value.code == "invalid_api_key"
    with pytest.raises(NotFoundError) as unknown:
        ai.chat.completions.create(model="gpt-9", messages=said("Hello."))
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(NotFoundError):
        ai.chat.completions.create(model="palyra/nobody", messages=said("Hello."))
    with pytest.raises(NotFoundError):
        ai.responses.create(model="palyra", input="Hello.", previous_response_id="resp_strange")
    with pytest.raises(BadRequestError) as two:
        ai.chat.completions.create(model="palyra", messages=said("Hello."), n=2)
    assert two.value.param == "n"
    with pytest.raises(BadRequestError, match="last message"):
        ai.chat.completions.create(model="palyra", messages=[{"role": "assistant", "content": "Hello."}])
    with pytest.raises(NotFoundError, match="No model is set for embeddings"):
        ai.embeddings.create(model="text-embedding-3-small", input="Hello.")
    bad = httpx.post(f"{daemon.address}/v1/chat/completions", headers=_owner(daemon), content=b"{half", verify=False)
    assert (bad.status_code, bad.json()["error"]["type"]) == (400, "invalid_request_error")
    nowhere = httpx.get(f"{daemon.address}/v1/engines", headers=_owner(daemon), verify=False)
    assert (nowhere.status_code, nowhere.json()["error"]["code"]) == (404, "route_not_found")


@pytest.mark.parametrize(
    ("text", "error", "code"),
    [
        ("too much", RateLimitError, "rate_limit_exceeded"),
        ("too long", BadRequestError, "context_length_exceeded"),
        ("no key", InternalServerError, "model_auth"),
    ],
)
def test_a_run_that_fails_says_why_and_is_not_begun_again(
    daemon: Daemon, connect: Connect, text: str, error: type[APIStatusError], code: str
) -> None:
    eager = connect(daemon, max_retries=2)
    with pytest.raises(error) as failed:
        eager.chat.completions.create(model="palyra", messages=said(text))
    assert failed.value.code == code
    assert len(daemon.runs()) == 1
    with pytest.raises(APIError) as torn:
        list(eager.chat.completions.create(model="palyra", messages=said(text), stream=True))
    assert torn.value.code == code


def test_a_budget_holds_here_too(new_sqlite_daemon: NewDaemon, connect: Connect) -> None:
    daemon = new_sqlite_daemon(SCRIPT)
    daemon.home.path.mkdir(mode=0o700)
    daemon.home.config.write_text("[spending.budgets.daily]\ntokens = 1\n")
    with pytest.raises(RateLimitError, match="The budget 'daily'") as refused:
        connect(daemon.start()).chat.completions.create(model="palyra", messages=said("Hello."))
    assert refused.value.code == "insufficient_quota"


def test_requests_that_come_too_fast_are_told_to_wait(new_sqlite_daemon: NewDaemon, connect: Connect) -> None:
    daemon = new_sqlite_daemon(SCRIPT, gateway_requests_per_second=1, gateway_request_burst=1).start()
    ai = connect(daemon)
    ai.models.list()
    with pytest.raises(RateLimitError) as refused:
        ai.models.list()
    assert refused.value.response.headers["retry-after"] == "1"


def test_two_halves_are_never_told_as_one(new_sqlite_daemon: NewDaemon, connect: Connect) -> None:
    daemon = new_sqlite_daemon(SCRIPT)
    daemon.home.path.mkdir(mode=0o700)
    daemon.home.config.write_text('[model]\nfallback = ["embedded"]\n')
    ai = connect(daemon.start())
    told: list[str] = []
    stream = ai.chat.completions.create(model="palyra", messages=said("break off"), stream=True)
    with pytest.raises(APIError) as torn:
        told.extend(chunk.choices[0].delta.content or "" for chunk in stream)
    assert torn.value.code == "answer_broke_off"
    (run,) = daemon.runs()
    assert daemon.finished(run["run_id"])["status"] == "cancelled", "nobody would ever hear of the rest"
    with pytest.raises(APIError):
        list(ai.chat.completions.create(model="palyra", messages=said("break off"), stream=True, user="ana"))
    run = next(run for run in daemon.runs() if run["status"] != "cancelled")
    assert daemon.finished(run["run_id"])["status"] == "done", "it goes on in its session, with another model"
    whole = ai.chat.completions.create(model="palyra", messages=said("break off"))
    assert "Half an" not in (whole.choices[0].message.content or "")


# -- callers that go away, and come back


def test_the_run_of_a_caller_that_goes_away_is_cancelled(daemon: Daemon, ai: OpenAI) -> None:
    stream = ai.chat.completions.create(model="palyra", messages=said("for ever"), stream=True)
    next(iter(stream))
    stream.close()
    (run,) = daemon.runs()
    ended = daemon.finished(run["run_id"])
    assert (ended["status"], ended["reason"]) == ("cancelled", "the client of /v1 closed the connection")


def test_so_is_that_of_one_that_waits_for_the_whole_answer(daemon: Daemon) -> None:
    asked = {"model": "palyra", "messages": said("for ever")}
    with closing(HTTPConnection(daemon.address.removeprefix("http://"))) as client:
        client.request("POST", "/v1/chat/completions", json.dumps(asked), _owner(daemon))
        (run,) = until(daemon.runs)
    assert daemon.finished(run["run_id"])["status"] == "cancelled"


@pytest.mark.parametrize("header", [{"X-Palyra-Detach": "true"}, {"Idempotency-Key": "k"}])
def test_unless_it_says_that_the_run_should_go_on(daemon: Daemon, ai: OpenAI, header: dict[str, str]) -> None:
    stream = ai.chat.completions.create(model="palyra", messages=said("slowly"), stream=True, extra_headers=header)
    next(iter(stream))
    stream.close()
    (run,) = daemon.runs()
    assert daemon.finished(run["run_id"])["status"] == "done"


def test_the_same_key_has_the_same_answer_also_after_a_crash(daemon: Daemon, connect: Connect) -> None:
    key = {"Idempotency-Key": "once"}
    ai = connect(daemon)
    with ai.chat.completions.create(model="palyra", messages=said("slowly"), stream=True, extra_headers=key) as stream:
        next(chunk for chunk in stream if chunk.choices[0].delta.content)
        daemon.kill()
        with pytest.raises(APIError):
            list(stream)
    daemon.start()
    ai = connect(daemon)
    again = ai.chat.completions.create(model="palyra", messages=said("slowly"), extra_headers=key)
    assert again.choices[0].message.content == "a" * 200
    told = ai.chat.completions.create(model="palyra", messages=said("slowly"), stream=True, extra_headers=key)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in told) == "a" * 200
    assert len(daemon.runs()) == 1
    with pytest.raises(ConflictError) as other:
        ai.chat.completions.create(model="palyra", messages=said("Hello."), extra_headers=key)
    assert other.value.code == "idempotency_key_conflict"
    assert daemon.verify().ok


# -- questions


def test_a_question_is_told_and_the_run_goes_on_when_it_is_answered(daemon: Daemon, ai: OpenAI) -> None:
    raw = ai.chat.completions.with_raw_response.create(model="palyra", messages=said("write it"), user="ana")
    run_id, choice = raw.headers["x-palyra-run-id"], raw.parse().choices[0]
    assert choice.finish_reason == "stop"
    told = choice.message.content or ""
    assert "write n.txt" in told
    code, link = re.findall(r"Code (\w{6})", told)[0], re.findall(r"http://\S+", told)[0]
    assert daemon.run(run_id)["status"] == "waiting"
    later = ai.chat.completions.create(model="palyra", messages=said("And?"), user="ana")
    assert code in (later.choices[0].message.content or ""), "who comes later is told what it waits for"
    assert code in httpx.get(link, headers=_owner(daemon), verify=False).text
    allowed = httpx.post(f"{link}/resolve", headers=_owner(daemon), json={"decision": "allow"}, verify=False)
    assert allowed.status_code == 200
    assert daemon.finished(run_id)["status"] == "done"
    until(lambda: all(run["ended_at"] for run in daemon.runs()))
    assert [run["status"] for run in daemon.runs()] == ["done", "done"]


def test_a_question_of_a_run_that_works_for_this_one_is_told_too(
    new_sqlite_daemon: NewDaemon, connect: Connect
) -> None:
    daemon = new_sqlite_daemon(SCRIPT, approvals_inbox=True).start()
    raw = connect(daemon).chat.completions.with_raw_response.create(model="palyra", messages=said("delegate it"))
    told = raw.parse().choices[0].message.content or ""
    assert "write n.txt" in told
    link = re.findall(r"http://\S+", told)[0]
    httpx.post(f"{link}/resolve", headers=_owner(daemon), json={"decision": "allow"}, verify=False)
    assert daemon.finished(raw.headers["x-palyra-run-id"])["status"] == "done"


def test_a_response_that_tells_of_a_question_is_complete(daemon: Daemon, ai: OpenAI) -> None:
    for text in ("write it", "And?"):
        *_, last = ai.responses.create(model="palyra", input=text, user="ana", stream=True)
        assert last.type == "response.completed"
        assert "palyra approvals allow" in last.response.output_text
        run = daemon.run(last.response.id.removeprefix("resp_"))
        assert run["ended_at"] is None
        assert ai.responses.retrieve(last.response.id).status == "in_progress"


def test_who_says_something_else_instead_joins_the_run_that_waits(daemon: Daemon, ai: OpenAI) -> None:
    first = ai.chat.completions.create(model="palyra", messages=said("write it"), user="ana")
    answer = ai.chat.completions.create(
        model="palyra", messages=said("Never mind."), user="ana", extra_headers={"X-Palyra-Mode": "steer"}
    )
    assert answer.choices[0].message.content == "You said: Never mind."
    assert answer.id == first.id, "it is the same run"
    with pytest.raises(BadRequestError) as refused:
        ai.chat.completions.create(model="palyra", messages=said("x"), extra_headers={"X-Palyra-Mode": "shout"})
    assert refused.value.param == "X-Palyra-Mode"


# -- tenancy


def test_nobody_goes_on_from_or_sees_what_is_another_s(daemon: Daemon, ai: OpenAI, connect: Connect) -> None:
    hers = ai.responses.create(model="palyra", input="The crown is under the third stone.", user="main")
    ben = connect(daemon, token=someone_else(daemon, "ben"))
    with pytest.raises(NotFoundError) as unseen:
        ben.responses.retrieve(hers.id)
    with pytest.raises(NotFoundError) as strange:
        ben.responses.retrieve("resp_01ARZ3NDEKTSV4RRFFQ69G5FAV")
    assert unseen.value.body == strange.value.body
    with pytest.raises(NotFoundError):
        ben.responses.create(model="palyra", input="Go on.", previous_response_id=hers.id)
    ben.chat.completions.create(model="palyra", messages=said("Hello."), user="main")
    (his,) = [run for run in ben_runs(daemon, ben)]
    assert his["session_id"] != daemon.run(hers.id.removeprefix("resp_"))["session_id"]


def ben_runs(daemon: Daemon, ben: OpenAI) -> list[Json]:
    answer = httpx.get(
        f"{daemon.address}/console/v1/runs", headers={"authorization": f"Bearer {ben.api_key}"}, verify=False
    )
    found: list[Json] = answer.json()["runs"]
    return found


def test_a_token_that_may_only_read_begins_no_run(daemon: Daemon, connect: Connect) -> None:
    asked = {"principal": "user:ana", "name": "reader", "scopes": ["read"]}
    made = httpx.post(f"{daemon.address}/admin/v1/tokens", headers=_owner(daemon), json=asked, verify=False)
    reader = connect(daemon, token=made.json()["secret"])
    assert list(reader.models.list())
    with pytest.raises(PermissionDeniedError):
        reader.chat.completions.create(model="palyra", messages=said("Hello."))


# -- embeddings


class Vectors(BaseHTTPRequestHandler):
    """A provider of embeddings."""

    asked: ClassVar[list[Json]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append((self.path, self.headers["authorization"], body))
        data = [{"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}]
        usage = {"prompt_tokens": 2, "total_tokens": 2}
        answer = json.dumps({"object": "list", "data": data, "model": body["model"], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def vectors() -> Iterator[int]:
    Vectors.asked = []
    with HTTPServer(("127.0.0.1", 0), Vectors) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_embeddings_are_passed_on(
    new_sqlite_daemon: NewDaemon, connect: Connect, vectors: int, tmp_path: object
) -> None:
    daemon = new_sqlite_daemon(SCRIPT)
    daemon.home.path.mkdir(mode=0o700)
    key = daemon.home.path / "key"
    key.write_text("secret-key")
    daemon.home.config.write_text(
        '[model]\nembeddings = "acme/vectors-1"\n[model.providers.acme]\ndialect = "openai"\n'
        f'base_url = "http://127.0.0.1:{vectors}/v1"\nkey = "file:{key}"\nmodel = "large"\n'
    )
    ai = connect(daemon.start())
    for model in ("vectors-1", "acme/vectors-1", "palyra"):
        answer = ai.embeddings.create(model=model, input="Hello.", encoding_format="float")
        assert answer.data[0].embedding == [0.5, -1.0]
    assert {(path, key) for path, key, _ in Vectors.asked} == {("/v1/embeddings", "Bearer secret-key")}
    assert {body["model"] for _, _, body in Vectors.asked} == {"vectors-1"}
    assert ai.embeddings.create(model="acme/other", input="x", encoding_format="float").model == "other"
    with pytest.raises(NotFoundError):
        ai.embeddings.create(model="vectors-2", input="x")
    with pytest.raises(BadRequestError, match="The model name is not valid"):
        ai.embeddings.create(model="acme/a\nb", input="x")


def test_a_provider_without_embeddings_is_named_as_what_it_is(new_sqlite_daemon: NewDaemon, connect: Connect) -> None:
    daemon = new_sqlite_daemon(SCRIPT)
    daemon.home.path.mkdir(mode=0o700)
    daemon.home.config.write_text('[model]\nembeddings = "embedded"\n')
    with pytest.raises(BadRequestError, match="does not support embeddings"):
        connect(daemon.start()).embeddings.create(model="palyra", input="Hello.")


# -- whatever comes


_WORDS = st.sampled_from(["user", "assistant", "tool", "system", "palyra", "scripted", "text", "function", "auto", ""])
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text() | _WORDS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "type", "text", "tool_calls", "tool_call_id", "id", "function", "name", "arguments"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
_NAMES = st.sampled_from(
    (
        "messages input tools tool_choice response_format stop n temperature max_tokens text stream_options user seed"
        " previous_response_id instructions parallel_tool_calls strange"
    ).split()
)
_MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": _WORDS},
        optional={"content": _VALUES, "tool_calls": _VALUES, "tool_call_id": st.text(), "name": st.text()},
    ),
    max_size=4,
)
BODIES = st.builds(
    lambda base, more: {**base, **more},
    st.fixed_dictionaries({"model": st.sampled_from(["palyra", "scripted", "no"])}, optional={"messages": _MESSAGES}),
    st.dictionaries(_NAMES, _VALUES, max_size=4),
)


def test_whatever_comes_is_answered_or_refused(daemon: Daemon) -> None:
    with httpx.Client(base_url=daemon.address, headers=_owner(daemon), timeout=60, verify=False) as client:

        @settings(
            max_examples=150,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(path=st.sampled_from(["chat/completions", "responses", "embeddings"]), body=BODIES)
        def probe(path: str, body: Json) -> None:
            answer = client.post(f"/v1/{path}", json=body)
            assert answer.status_code < 500, (body, answer.text)
            if answer.status_code >= 400:
                assert set(answer.json()["error"]) == {"message", "type", "param", "code"}

        probe()
    assert daemon.verify().ok
