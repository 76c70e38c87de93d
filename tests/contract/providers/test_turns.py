"""What holds of every turn, whichever dialect it is asked in."""

from msgspec import structs

from palyra.core.model.prompt import CallProposed, Message, Role, TurnDone
from tests.contract.providers.conftest import PROMPT, Asking, said
from tests.contract.providers.wire import Wire, heard
from tests.support.model_server import ModelServer, answer, stalls, stream


async def test_the_text_comes_before_the_answer_is_over(wire: Wire, server: ModelServer, asking: Asking) -> None:
    server.play(stalls(wire.begin + wire.piece))

    turn = asking().stream(PROMPT)
    first = await anext(event async for event in turn if getattr(event, "text", ""))
    await turn.aclose()  # type: ignore[attr-defined]

    assert getattr(first, "text", "") == "la "


async def test_arguments_that_are_no_json_are_proposed_as_malformed(
    wire: Wire, server: ModelServer, asking: Asking
) -> None:
    server.play(stream(wire.recording("bad_arguments")))

    call, done = await said(asking())

    assert isinstance(call, CallProposed)
    assert (call.tool, call.arguments) == ("files.read", {})
    assert '{"path": "a.t' in call.malformed
    assert isinstance(done, TurnDone)


async def test_every_call_of_a_turn_has_an_id_of_its_own(wire: Wire, server: ModelServer, asking: Asking) -> None:
    server.play(stream(wire.recording("same_ids")))

    calls = [event for event in await said(asking()) if isinstance(event, CallProposed)]

    assert [call.arguments for call in calls] == [{}, {"zone": "UTC"}]
    assert len({call.call_id for call in calls}) == 2
    assert all(call.call_id for call in calls)


async def test_usage_that_is_not_told_is_estimated(wire: Wire, server: ModelServer, asking: Asking) -> None:
    server.play(stream(wire.recording("no_usage")))

    usage = heard(await said(asking())).usage

    assert usage.estimated
    assert usage.input_tokens > 0
    assert usage.output_tokens > 0


async def test_the_request_goes_where_it_should_with_the_key(wire: Wire, server: ModelServer, asking: Asking) -> None:
    server.play(stream(wire.recording("text")))

    await said(asking(headers={"X-Team": "blue", "X-Token": "env:SECOND"}))

    asked = server.asked[0]
    assert (asked.method, asked.path.partition("?")[0]) == ("POST", wire.path)
    assert "sk-0123456789abcdefghij" in asked.headers[wire.key_header]
    assert asked.headers["x-team"] == "blue"
    assert asked.headers["x-token"] == "sk-zyxwvutsrqponmlkjihg"
    assert b"hello" in asked.body
    assert b"sk-" not in asked.body


async def test_what_stands_behind_the_base_url_stays_behind(wire: Wire, server: ModelServer, asking: Asking) -> None:
    server.play(stream(wire.recording("text")), answer(200, wire.models))
    model = asking(base_url=f"http://127.0.0.1:{server.port}/v1/?api-version=2024-10-21")

    await said(model)
    await model.models()

    paths = [asked.path.partition("?") for asked in server.asked]
    assert paths[0][0] == wire.path
    assert all(query.endswith("api-version=2024-10-21") for _, _, query in paths)
    assert not any("?" in query for _, _, query in paths)


async def test_signs_of_life_and_words_about_the_end_are_no_part_of_an_answer(
    wire: Wire, server: ModelServer, asking: Asking
) -> None:
    *pieces, _ = wire.recording("text").replace(b"data: [DONE]\n\n", b"").split(b"\n\n")
    alive = b"\n\n: alive\n\ndata: \n\nevent: ping\ndata:\n\n"
    server.play(stream(alive.join(pieces) + b"\n\ndata: [DONE] \n\n"))

    assert heard(await said(asking())) == wire.turns["text"]


async def test_a_stream_may_be_called_something_else(wire: Wire, server: ModelServer, asking: Asking) -> None:
    server.play(stream(wire.recording("text"), cut=1, headers={"Content-Type": "text/plain"}))

    assert heard(await said(asking())) == wire.turns["text"]


async def test_a_large_conversation_arrives_whole(wire: Wire, server: ModelServer, asking: Asking) -> None:
    server.play(stream(wire.recording("text")))
    words = "a long story " * 200_000

    await said(asking(), structs.replace(PROMPT, messages=(Message(role=Role.USER, text=words),)))

    assert words.encode() in server.asked[0].body


async def test_a_connection_is_used_again(wire: Wire, server: ModelServer, asking: Asking) -> None:
    server.play(stream(wire.recording("text")))
    model = asking()

    for _ in range(3):
        await said(model)

    assert server.connections == 1


async def test_no_cookie_is_sent_back(wire: Wire, server: ModelServer, asking: Asking) -> None:
    server.play(stream(wire.recording("text"), headers={"Set-Cookie": "who=me; Path=/"}))
    model = asking()

    await said(model)
    await said(model)

    assert "cookie" not in server.asked[1].headers


async def test_models_are_listed(wire: Wire, server: ModelServer, asking: Asking) -> None:
    server.play(answer(200, wire.models))

    assert await asking().models() == ["one", "two"]
    assert server.asked[0].method == "GET"
    assert server.asked[0].headers[wire.key_header]
