"""What a provider may do wrong, and what becomes of it: one kind, one sentence, no key, nothing left open."""

import asyncio
import os
import socket
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec import structs

from palyra.core.model.prompt import TextDelta
from palyra.providers.base import FailureKind, ProviderFailed
from palyra.providers.transport import http as over_http
from palyra.providers.transport.http import ProviderHttpClient
from palyra.providers.transport.remote_provider import RemoteProvider
from tests.contract.providers.conftest import KEYS, PROMPT, Asking, failing, said
from tests.contract.providers.wire import Wire, heard
from tests.support.eventually import eventually
from tests.support.model_server import (
    ModelServer,
    Reply,
    answer,
    breaks_off,
    echo_key,
    endless,
    model_server,
    raw,
    silent,
    stalls,
    stream,
)
from tests.support.needs import OPENSSL, needs
from tests.support.web_site import HELLO, Site, certificate, served

ASK = """
import asyncio, sys
from palyra.providers.transport.http import ProviderHttpClient

async def ask():
    http = ProviderHttpClient()
    async with await http.get(sys.argv[1], headers={}, seconds=10) as answer:
        print(answer.status, (await answer.body(seconds=10)).decode())
    await http.close()

asyncio.run(ask())
"""
HTML = "<!doctype html><html><body><h1>Sign in to the network</h1></body></html>"


async def test_each_error_is_of_its_kind(wire: Wire, server: ModelServer, asking: Asking) -> None:
    for refusal in wire.refusals:
        server.play(answer(refusal.status, refusal.body))

        failed = await failing(asking())

        assert (failed.kind, refusal.body) == (refusal.kind, refusal.body)
        assert failed.refused


async def test_a_model_that_is_not_there_is_told_as_that(wire: Wire, server: ModelServer, asking: Asking) -> None:
    for refusal in wire.refusals:
        if refusal.status == 404:
            server.play(answer(404, refusal.body))

            assert f"returned 404 for {wire.model}" in (await failing(asking())).detail


async def test_a_key_that_is_refused_is_named_by_its_place(wire: Wire, server: ModelServer, asking: Asking) -> None:
    server.play(echo_key(401))

    failed = await failing(asking())

    assert failed.kind is FailureKind.AUTH
    assert "env:KEY" in failed.detail
    assert len(server.asked) == 1


async def test_a_second_key_is_tried_when_the_first_is_refused(wire: Wire, server: ModelServer, asking: Asking) -> None:
    server.play(echo_key(401), stream(wire.recording("text")))

    turn = heard(await said(asking(keys=("env:SECOND",))))

    assert turn.text == wire.turns["text"].text
    keys = [asked.headers[wire.key_header] for asked in server.asked]
    assert [KEYS["env:KEY"] in keys[0], KEYS["env:SECOND"] in keys[1]] == [True, True]


async def test_a_second_key_is_not_tried_for_anything_else(wire: Wire, server: ModelServer, asking: Asking) -> None:
    server.play(answer(429, {"error": {"message": "slow down"}}), stream(wire.recording("text")))

    failed = await failing(asking(keys=("env:SECOND",)))

    assert failed.kind is FailureKind.RATE_LIMIT
    assert len(server.asked) == 1


async def test_a_server_without_keys_is_sent_none(wire: Wire, server: ModelServer, asking: Asking) -> None:
    server.play(stream(wire.recording("text")))

    await said(asking(key=None))

    assert not {"authorization", wire.key_header} & server.asked[0].headers.keys()


async def test_a_key_that_is_wanted_and_not_named_is_asked_for(wire: Wire, server: ModelServer, asking: Asking) -> None:
    server.play(echo_key(401))

    failed = await failing(asking(key=None))

    assert failed.kind is FailureKind.AUTH
    assert "none is set" in failed.detail


async def test_a_key_that_is_not_there_is_asked_for_and_nothing_is_sent(
    wire: Wire, server: ModelServer, asking: Asking
) -> None:
    failed = await failing(asking(key="env:NOWHERE"))

    assert failed.kind is FailureKind.AUTH
    assert failed.refused
    assert "env:NOWHERE" in failed.detail
    assert server.asked == []


async def test_a_key_that_can_not_stand_in_a_header_is_not_sent(
    wire: Wire, server: ModelServer, asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KEYS, "env:KEY", "two\r\nX-Lines: of it")

    failed = await failing(asking())

    assert failed.kind is FailureKind.AUTH
    assert server.asked == []


@pytest.mark.parametrize("status", [400, 403, 404, 429, 500])
async def test_a_key_that_is_said_back_is_not_shown(
    status: int, wire: Wire, server: ModelServer, asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One that looks like nothing in particular: only that it was sent gives it away.
    monkeypatch.setitem(KEYS, "env:KEY", "plain-words-and-9-numbers")
    server.play(echo_key(status))

    failed = await failing(asking())

    assert "plain-words" not in failed.detail


async def test_a_key_is_not_shown_where_the_words_are_cut(wire: Wire, server: ModelServer, asking: Asking) -> None:
    key = KEYS["env:KEY"].replace("sk-", "q-")
    for lead in [*("x" * size for size in range(170, 200)), " " * 3990]:
        message = f"{lead}{key} and so on, and so on"
        server.play(answer(400, {"error": {"message": message, "type": "bad", "code": 400, "status": "BAD"}}))
        model = asking()

        async def resolved(reference: str) -> str:
            return key

        model._key = resolved
        failed = await failing(model)

        assert key[:4] not in failed.detail


async def test_a_key_that_is_said_back_within_the_answer_is_not_shown(
    wire: Wire, server: ModelServer, asking: Asking
) -> None:
    server.play(stream(wire.begin + wire.error_inside(f"No: {KEYS['env:KEY']}")))

    failed = await failing(asking())

    assert "No:" in failed.detail


async def test_a_key_that_is_said_back_as_an_answer_is_not_shown(
    wire: Wire, server: ModelServer, asking: Asking
) -> None:
    server.play(stalls(wire.begin + wire.piece.replace(b"la ", f"You sent {KEYS['env:KEY']}.".encode())))
    text = ""

    with suppress(ProviderFailed):
        async for event in asking(read_timeout_seconds=0.2).stream(PROMPT):
            text += event.text if isinstance(event, TextDelta) else ""

    assert text == "You sent [redacted]."


@pytest.mark.parametrize("cut", [1, 7, 64])
async def test_a_key_that_comes_in_two_pieces_of_the_network_is_not_shown(
    cut: int, wire: Wire, server: ModelServer, asking: Asking
) -> None:
    server.play(stream(wire.begin + wire.piece.replace(b"la ", f"You sent {KEYS['env:KEY']}.".encode()), cut=cut))

    assert await heard_of(asking()) == "You sent [redacted]."


async def test_a_key_that_is_spelled_out_over_many_events_is_not_shown(
    wire: Wire, server: ModelServer, asking: Asking
) -> None:
    words = ["You ", "sent ", *KEYS["env:KEY"], ", ", "yes", "."]
    server.play(stream(wire.begin + b"".join(wire.piece.replace(b"la ", word.encode()) for word in words)))

    assert await heard_of(asking()) == "You sent [redacted], yes."


async def test_an_error_that_comes_in_pieces_does_not_show_the_key(
    wire: Wire, server: ModelServer, asking: Asking
) -> None:
    server.play(stream(wire.begin + wire.error_inside(f"No: {KEYS['env:KEY']}"), cut=5))

    failed = await failing(asking())

    assert "No:" in failed.detail
    assert KEYS["env:KEY"][:12] not in failed.detail


async def heard_of(model: RemoteProvider) -> str:
    text = ""
    with suppress(ProviderFailed):
        async for event in model.stream(PROMPT):
            text += event.text if isinstance(event, TextDelta) else ""
    return text


async def test_what_a_server_says_is_shown_short_and_clean(wire: Wire, server: ModelServer, asking: Asking) -> None:
    message = "\x1b[31mred\x07\n" + "very " * 1000
    server.play(answer(500, {"error": {"message": message, "type": "bad", "code": 500, "status": "INTERNAL"}}))

    failed = await failing(asking())

    assert "red very" in failed.detail
    assert len(failed.detail) < 500


@pytest.mark.parametrize("status", [200, 404, 502])
async def test_a_web_page_is_no_answer(status: int, wire: Wire, server: ModelServer, asking: Asking) -> None:
    server.play(answer(status, HTML, headers={"Content-Type": "text/html"}))

    failed = await failing(asking())

    assert failed.kind is (FailureKind.UNAVAILABLE if status == 502 else FailureKind.MALFORMED)
    assert "web page" in failed.detail


@pytest.mark.parametrize("body", [b"", b"data", b'{"id": "x", "choices": [{"ind', b"[]", b"\xff\xfe", b"null"])
async def test_an_answer_that_is_no_stream_is_malformed(
    body: bytes, wire: Wire, server: ModelServer, asking: Asking
) -> None:
    server.play(answer(200, body, headers={"Content-Type": "application/json"}))

    assert (await failing(asking())).kind is FailureKind.MALFORMED


@pytest.mark.parametrize(
    "event",
    [b'{"id": "x", "choi', b"\xff\xfe\xfd", b"nonsense", b"[1, 2]", b"[" * 100_000],
    ids=["half", "bytes", "words", "a list", "deep"],
)
async def test_an_event_that_is_no_json_object_is_malformed(
    event: bytes, wire: Wire, server: ModelServer, asking: Asking
) -> None:
    server.play(stream(wire.begin + wire.piece + b"data: " + event + b"\n\n"))

    failed = await failing(asking())

    assert failed.kind is FailureKind.MALFORMED
    assert not failed.refused


async def test_half_a_letter_is_malformed(wire: Wire, server: ModelServer, asking: Asking) -> None:
    server.play(stream(wire.begin + wire.piece.replace(b"la ", b"l\xc3")))

    assert (await failing(asking())).kind is FailureKind.MALFORMED


async def test_an_error_within_a_good_status_fails(wire: Wire, server: ModelServer, asking: Asking) -> None:
    for reply in (
        stream(wire.error_inside("The engine is on fire.")),
        stream(wire.begin + wire.piece + wire.error_inside("The engine is on fire.")),
        answer(200, {"error": {"message": "The engine is on fire.", "type": "server_error", "code": 500}}),
    ):
        server.play(reply)

        failed = await failing(asking())

        assert failed.kind is FailureKind.UNAVAILABLE
        assert "The engine is on fire" in failed.detail


async def test_a_redirect_is_not_followed(wire: Wire, server: ModelServer, asking: Asking) -> None:
    async with model_server(stream(wire.recording("text"))) as other:
        for status in (301, 302, 307, 308):
            server.play(answer(status, b"", headers={"Location": f"http://localhost:{other.port}/v1/elsewhere"}))

            failed = await failing(asking())

            assert failed.kind is FailureKind.MALFORMED
            assert "localhost" in failed.detail
        for place in ("http://{model.__class__}/x", "//[half", "", "http://ana:secret@elsewhere.example/"):
            server.play(answer(302, b"", headers={"Location": place}))

            failed = await failing(asking())

            assert failed.kind is FailureKind.MALFORMED
            assert "secret" not in failed.detail
        assert other.asked == []
        assert other.connections == 0


async def test_a_stream_that_ends_before_its_end_broke_off(wire: Wire, server: ModelServer, asking: Asking) -> None:
    for reply in (
        stream(wire.begin + wire.piece),
        breaks_off(wire.begin + wire.piece),
        breaks_off(),
        stream(b": hm\n\n"),
    ):
        server.play(reply)

        failed = await failing(asking())

        assert failed.kind is FailureKind.NETWORK
        assert not failed.refused


async def test_what_was_said_before_it_broke_off_was_passed_on(wire: Wire, server: ModelServer, asking: Asking) -> None:
    server.play(breaks_off(wire.begin + wire.piece))
    texts = []

    with suppress(Exception):
        async for event in asking().stream(PROMPT):
            texts += [event.text] if isinstance(event, TextDelta) and event.text else []

    assert texts == ["la "]


@pytest.mark.parametrize("data", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 OK\r\n\r\n", b"\x00\x01\x02\x03\r\n\r\n"])
async def test_what_is_no_http_is_malformed(data: bytes, wire: Wire, server: ModelServer, asking: Asking) -> None:
    server.play(raw(data))

    assert (await failing(asking())).kind is FailureKind.MALFORMED


async def test_a_server_that_hangs_up_at_once_could_not_be_reached(
    wire: Wire, server: ModelServer, asking: Asking
) -> None:
    server.play(raw(b""))

    assert (await failing(asking())).kind is FailureKind.NETWORK


async def test_a_server_that_is_not_there_could_not_be_reached(wire: Wire, asking: Asking) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    failed = await failing(asking(base_url=f"http://127.0.0.1:{port}/v1"))

    assert failed.kind is FailureKind.NETWORK
    assert failed.refused


async def test_a_host_that_is_not_there_could_not_be_reached(
    wire: Wire, asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)

    failed = await failing(asking(base_url="http://nowhere.invalid/v1"))

    assert failed.kind is FailureKind.NETWORK
    assert failed.refused
    assert "the host was not found" in failed.detail


@needs(OPENSSL)
async def test_a_certificate_that_nobody_vouches_for_is_not_trusted(wire: Wire, asking: Asking, tmp_path: Path) -> None:
    made, key = await asyncio.to_thread(certificate, tmp_path, "127.0.0.1")
    site = Site()
    async with served(site, made=made, key=key):
        failed = await failing(asking(base_url=f"https://127.0.0.1:{site.port}/v1"))

    assert failed.kind is FailureKind.NETWORK
    assert failed.refused
    assert "certificate" in failed.detail
    assert site.asked == []


@needs(OPENSSL)
async def test_a_certificate_that_the_environment_vouches_for_is_trusted(tmp_path: Path) -> None:
    made, key = await asyncio.to_thread(certificate, tmp_path, "127.0.0.1")
    site = Site()
    site.replies["/v1/models"] = HELLO
    async with served(site, made=made, key=key):
        # The environment counts when the library is loaded, so in a process of its own.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", ASK, f"https://127.0.0.1:{site.port}/v1/models"),
            env={**os.environ, "SSL_CERT_FILE": made},
            stdout=asyncio.subprocess.PIPE,
        )
        told, _ = await process.communicate()

    assert told == b"200 hello\n"


@pytest.mark.parametrize("reply", [silent, stalls()], ids=["no head", "no body"])
async def test_an_answer_that_does_not_begin_is_given_up(
    reply: Reply, wire: Wire, server: ModelServer, asking: Asking
) -> None:
    server.play(reply)

    failed = await failing(asking(first_byte_timeout_seconds=0.2))

    assert failed.kind is FailureKind.TIMEOUT


async def test_an_answer_that_stands_still_is_given_up(wire: Wire, server: ModelServer, asking: Asking) -> None:
    server.play(stalls(wire.begin + wire.piece))

    failed = await failing(asking(read_timeout_seconds=0.2))

    assert failed.kind is FailureKind.TIMEOUT
    assert "stalled for 0.2 s" in failed.detail


async def test_an_answer_that_takes_too_long_is_given_up(wire: Wire, server: ModelServer, asking: Asking) -> None:
    server.play(endless(wire.piece, first=wire.begin))

    failed = await failing(asking(total_timeout_seconds=0.3))

    assert failed.kind is FailureKind.TIMEOUT
    assert "not complete after 0.3 s" in failed.detail


async def test_thoughts_and_arguments_without_end_are_cut_off(wire: Wire, server: ModelServer, asking: Asking) -> None:
    for event in (wire.thought, wire.sealed, wire.argument):
        server.play(endless(event, first=wire.begin))

        failed = await failing(asking())

        assert failed.kind is FailureKind.MALFORMED
        assert "too long" in failed.detail


async def test_an_event_without_end_is_cut_off(wire: Wire, server: ModelServer, asking: Asking) -> None:
    server.play(endless(b"data: " + b"x" * 10_000))

    failed = await failing(asking())

    assert failed.kind is FailureKind.MALFORMED
    assert "too large" in failed.detail


async def test_a_stream_of_nothing_is_cut_off(
    wire: Wire, server: ModelServer, asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(over_http, "MAX_STREAM_BYTES", 1024 * 1024)
    server.play(endless(b": still here\n\n"))

    failed = await failing(asking())

    assert failed.kind is FailureKind.MALFORMED
    assert "too long" in failed.detail


@pytest.mark.parametrize("encoding", ["none", "", "Identity"])
async def test_an_answer_that_is_said_not_to_be_compressed_is_taken(
    encoding: str, wire: Wire, server: ModelServer, asking: Asking
) -> None:
    server.play(stream(wire.recording("text"), headers={"Content-Encoding": encoding}))

    assert heard(await said(asking())) == wire.turns["text"]


@pytest.mark.parametrize(
    "first", [b": OPENROUTER PROCESSING\n\n", b"\xef\xbb\xbf", b"id: 1\n", b"retry: 10\n\n", b"\n\n\n:\n"]
)
async def test_a_stream_that_is_called_something_else_may_begin_with_a_remark(
    first: bytes, wire: Wire, server: ModelServer, asking: Asking
) -> None:
    server.play(stream(first + wire.recording("text"), headers={"Content-Type": "application/octet-stream"}))

    assert heard(await said(asking())) == wire.turns["text"]


async def test_a_letter_that_comes_in_two_halves_is_whole(wire: Wire, server: ModelServer, asking: Asking) -> None:
    halves = b"".join(wire.piece.replace(b"la ", half) for half in (rb"\ud83c", rb"\udfbb"))
    server.play(stream(wire.begin + halves + wire.piece))
    text = ""

    with suppress(ProviderFailed):
        async for event in asking().stream(PROMPT):
            text += event.text if isinstance(event, TextDelta) else ""

    assert text == "🎻la "


async def test_an_answer_of_the_first_http_ends_with_its_connection(
    wire: Wire, server: ModelServer, asking: Asking
) -> None:
    head = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    server.play(raw(head + wire.recording("text")))

    assert heard(await said(asking())) == wire.turns["text"]


async def test_what_comes_before_and_behind_an_answer_is_passed_over(
    wire: Wire, server: ModelServer, asking: Asking
) -> None:
    body = wire.recording("text")
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n"
    chunks = b"%x;name=value\r\n%s\r\n0\r\nX-T: 1\r\n\r\n" % (len(body), body)
    server.play(raw(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + head + chunks))

    assert heard(await said(asking())) == wire.turns["text"]


async def test_an_answer_that_is_compressed_is_not_taken(wire: Wire, server: ModelServer, asking: Asking) -> None:
    server.play(stream(b"\x1f\x8b\x08\x00 not really", headers={"Content-Encoding": "gzip"}))

    assert (await failing(asking())).kind is FailureKind.MALFORMED


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"Retry-After-Ms": "1500", "Retry-After": "2"}, 1.5),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT", "Date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30),
        ({"Retry-After": "soon"}, 0),
        ({"Retry-After": "99999999999999"}, 0),
        ({"Retry-After": "999999999"}, 86400),
        (
            {
                "X-RateLimit-Remaining-Requests": "0",
                "X-RateLimit-Reset-Requests": "6m1.5s",
                "X-RateLimit-Reset-Tokens": "20ms",
            },
            361.5,
        ),
        ({"X-RateLimit-Reset-Requests": "1s", "X-RateLimit-Reset-Tokens": "250ms"}, 0.25),
        ({}, 0),
    ],
)
async def test_a_provider_may_say_when_to_come_back(
    headers: dict[str, str], seconds: float, wire: Wire, server: ModelServer, asking: Asking
) -> None:
    server.play(answer(429, {"error": {"message": "Slow down."}}, headers=headers))

    failed = await failing(asking())

    assert (failed.kind, failed.retry_after) == (FailureKind.RATE_LIMIT, timedelta(seconds=seconds))


@pytest.mark.parametrize("when", ["waiting for the head", "waiting for the body", "amid the answer", "closed"])
async def test_whoever_is_cancelled_closes_the_connection_at_once(
    when: str, wire: Wire, server: ModelServer, asking: Asking
) -> None:
    head, body, amid = silent, stalls(), stalls(wire.begin + wire.piece)
    server.play({"waiting for the head": head, "waiting for the body": body}.get(when, amid))
    # Nothing else would close it: the server says nothing for ever, and is waited for longer than the test lasts.
    model, spoke = asking(first_byte_timeout_seconds=600.0), asyncio.Event()

    if when == "closed":
        turn = model.stream(PROMPT)
        await anext(event async for event in turn if isinstance(event, TextDelta) and event.text)
        await turn.aclose()  # type: ignore[attr-defined]
    else:
        task = asyncio.create_task(_listen(model, spoke))
        await eventually(lambda: bool(server.lines) and (when != "amid the answer" or spoke.is_set()))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await eventually(lambda: server.lines[0].closed_at is not None)


async def test_a_request_that_nobody_takes_is_given_up(wire: Wire, asking: Asking) -> None:
    """The rest of it is not kept until somebody does."""
    prompt = structs.replace(PROMPT, system="x" * 32 * 1024 * 1024)
    connected, cancelled, taken = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop().create_future()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await cancelled.wait()
        size = 0
        with suppress(ConnectionError):
            while piece := await reader.read(1024 * 1024):
                size += len(piece)
        taken.set_result(size)
        writer.close()

    async with await asyncio.start_server(deaf, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        task = asyncio.create_task(said(asking(base_url=f"http://127.0.0.1:{port}/v1"), prompt))
        await connected.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        cancelled.set()

        assert await taken < 32 * 1024 * 1024


async def test_many_may_be_asked_at_once(wire: Wire, server: ModelServer, asking: Asking) -> None:
    server.play(stream(wire.recording("text"), cut=50))
    model = asking()

    turns = await asyncio.gather(*(said(model) for _ in range(100)))

    assert {heard(turn).text for turn in turns} == {wire.turns["text"].text}


async def test_a_client_that_is_closed_asks_nobody(
    wire: Wire, server: ModelServer, asking: Asking, http: ProviderHttpClient
) -> None:
    server.play(stream(wire.recording("text")))
    model = asking()
    await said(model)
    await http.close()

    failed = await failing(model)

    assert failed.kind is FailureKind.UNAVAILABLE
    assert len(server.asked) == 1


async def test_the_proxy_of_the_environment_is_used(
    wire: Wire, server: ModelServer, asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.play(stream(wire.recording("text")))
    monkeypatch.setenv("http_proxy", f"http://ana:pass%20word@127.0.0.1:{server.port}")

    turn = heard(await said(asking(base_url="http://provider.example/v1")))

    assert turn.text == wire.turns["text"].text
    assert server.asked[0].path.startswith("http://provider.example/v1")
    assert server.asked[0].headers["proxy-authorization"] == "Basic YW5hOnBhc3Mgd29yZA=="

    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    await said(asking())
    assert server.asked[1].path.startswith(wire.path)
    assert "proxy-authorization" not in server.asked[1].headers


async def test_a_proxy_learns_who_asks_it_and_nothing_else(
    wire: Wire, server: ModelServer, asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.play(answer(502, b"no"))
    monkeypatch.setenv("https_proxy", f"http://ana:word@127.0.0.1:{server.port}")

    failed = await failing(asking(base_url="https://provider.example/v1"))

    assert failed.kind is FailureKind.NETWORK
    assert failed.refused
    asked = server.asked[0]
    assert (asked.method, asked.path) == ("CONNECT", "provider.example:443")
    assert asked.headers["proxy-authorization"] == "Basic YW5hOndvcmQ="
    assert wire.key_header not in asked.headers


async def _listen(model: RemoteProvider, spoke: asyncio.Event) -> None:
    async for event in model.stream(PROMPT):
        if isinstance(event, TextDelta) and event.text:
            spoke.set()
