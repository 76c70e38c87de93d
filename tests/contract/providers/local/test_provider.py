"""A real model in this process. It is a very small one: that it answers is tried here, and not that it is clever."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from palyra.core.model.catalog import DialectName, ModelCard, ModelNotFound, ModelProvider
from palyra.core.model.prompt import (
    CallProposed,
    GenerationOptions,
    Message,
    ModelEvent,
    Prompt,
    Role,
    StopReason,
    TextDelta,
    ToolChoice,
    TurnDone,
)
from palyra.core.tool import ToolSpec
from palyra.providers.base import FailureKind, Provider, ProviderFailed
from palyra.providers.emulated_tools.provider import EmulatedToolsProvider
from palyra.providers.local import llama as native
from palyra.providers.local import provider as local
from palyra.providers.local.llama import LlamaRuntime
from palyra.providers.local.provider import LocalProvider, model_card
from tests.support.needs import OPENMP, require

# What can be said of these is short, so that even a model without sense comes to an end.
TOOLS = (
    ToolSpec(
        name="light.turn",
        description="Turn the light on or off.",
        parameters={"type": "object", "properties": {"to": {"enum": ["on", "off"]}}, "required": ["to"]},
    ),
    ToolSpec(name="door.open", description="Open the door.", parameters={"type": "object", "properties": {}}),
)
SMALL = ModelCard(window_tokens=1024, max_output_tokens=256)


@pytest.fixture
async def llama() -> AsyncIterator[LlamaRuntime]:
    """What runs the files; everything is let go after the test."""
    require(OPENMP)
    llama = LlamaRuntime()
    yield llama
    await llama.close()


def at(path: Path, **settings: Any) -> ModelProvider:
    return ModelProvider(dialect=DialectName.LOCAL, path=str(path), model="small", models={"small": SMALL}, **settings)


def a_model(path: Path, llama: LlamaRuntime, **settings: Any) -> LocalProvider:
    table = at(path, **settings)
    return LocalProvider("here", table, model_card(table), llama)


def a_prompt(text: str, *, tokens: int = 12, system: str = "Be brief.") -> Prompt:
    options = GenerationOptions(max_output_tokens=tokens, temperature=0.0)
    return Prompt(system=system, tools=(), messages=(Message(role=Role.USER, text=text),), options=options)


async def heard(provider: Provider, prompt: Prompt) -> list[ModelEvent]:
    return [event async for event in provider.stream(prompt)]


def begun(provider: Provider, prompt: Prompt) -> AsyncGenerator[ModelEvent]:
    return cast("AsyncGenerator[ModelEvent]", provider.stream(prompt))


def text_of(events: list[ModelEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def falls_idle() -> None:
    """Wait until this process hardly calculates."""
    async with asyncio.timeout(60):
        spent = 1.0
        while spent > 0.05:
            before = time.process_time()
            await asyncio.sleep(0.2)
            spent = time.process_time() - before


async def test_a_real_answer_comes_token_by_token(weights: Path, llama: LlamaRuntime) -> None:
    model = a_model(weights, llama)
    assert model.capabilities.window_tokens == 1024
    events = await heard(model, a_prompt("What is the capital of France?"))
    *said, done = events
    assert "Paris" in text_of(events)
    assert all(isinstance(event, TextDelta) for event in said)
    assert len(said) > 3
    assert isinstance(done, TurnDone)
    assert done.usage.output_tokens in range(len(said), 13)
    assert done.usage.input_tokens in range(15, 60)
    assert not done.usage.estimated
    again = await heard(model, a_prompt("What is the capital of France?"))
    assert text_of(again) == text_of(events)
    assert isinstance(again[-1], TurnDone)
    assert again[-1].usage.cached_tokens > 0, "what was read before is not read again"


async def test_an_answer_ends_at_its_greatest_length(weights: Path, llama: LlamaRuntime) -> None:
    (*_, done) = await heard(a_model(weights, llama), a_prompt("Tell a very long story.", tokens=4))
    assert isinstance(done, TurnDone)
    assert done.stop is StopReason.LENGTH
    assert done.usage.output_tokens == 4


async def test_the_model_writes_a_call_or_an_answer_when_it_must(weights: Path, llama: LlamaRuntime) -> None:
    model = EmulatedToolsProvider(a_model(weights, llama))
    prompt = msgspec.structs.replace(a_prompt("Please turn on the light.", tokens=60), tools=TOOLS)
    free = await heard(model, prompt)
    assert text_of(free) or any(isinstance(event, CallProposed) for event in free)
    assert isinstance(free[-1], TurnDone)
    options = msgspec.structs.replace(prompt.options, choice=ToolChoice.REQUIRED)
    call, done = await heard(model, msgspec.structs.replace(prompt, options=options))
    assert isinstance(call, CallProposed)
    assert (call.tool, call.arguments) in [
        ("light.turn", {"to": "on"}),
        ("light.turn", {"to": "off"}),
        ("door.open", {}),
    ]
    assert isinstance(done, TurnDone)
    assert done.stop is StopReason.CALLS
    assert done.usage.output_tokens > 0


async def test_who_stops_listening_stops_the_model(weights: Path, llama: LlamaRuntime) -> None:
    model = a_model(weights, llama)
    stream = begun(model, a_prompt("Tell a very long story.", tokens=250))
    async for _ in stream:
        break
    await stream.aclose()
    await falls_idle()


async def test_a_cancel_stops_the_model_while_it_reads(weights: Path, llama: LlamaRuntime) -> None:
    model = a_model(weights, llama)
    await heard(model, a_prompt("hi", tokens=1))
    reading = asyncio.create_task(heard(model, a_prompt("one two three four " * 200, tokens=250)))
    await asyncio.sleep(0.2)
    assert not reading.done()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await falls_idle()


async def test_two_at_once_are_answered_in_their_turn(weights: Path, llama: LlamaRuntime) -> None:
    model = a_model(weights, llama)
    order: list[int] = []

    async def ask(number: int) -> list[ModelEvent]:
        events = await heard(model, a_prompt(f"Say {number}.", tokens=8))
        order.append(number)
        return events

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(number)) for number in range(3)]
    assert order == [0, 1, 2]
    for task in tasks:
        assert text_of(task.result())
        assert isinstance(task.result()[-1], TurnDone)


async def test_who_is_taken_back_while_it_waits_is_never_asked(weights: Path, llama: LlamaRuntime) -> None:
    model = a_model(weights, llama)
    first = asyncio.create_task(heard(model, a_prompt("Tell a long story.", tokens=30)))
    second = asyncio.create_task(heard(model, a_prompt("Tell a very long story.", tokens=250)))
    third = asyncio.create_task(heard(model, a_prompt("Say hello.", tokens=4)))
    await asyncio.sleep(0)
    second.cancel()
    assert isinstance((await first)[-1], TurnDone)
    assert isinstance((await third)[-1], TurnDone)
    assert second.cancelled()


async def test_a_conversation_that_is_too_long_is_told_as_such(weights: Path, llama: LlamaRuntime) -> None:
    with pytest.raises(ProviderFailed) as caught:
        await heard(a_model(weights, llama), a_prompt("word " * 2000))
    assert caught.value.kind is FailureKind.CONTEXT_TOO_LONG


async def test_an_answer_that_takes_too_long_is_given_up(weights: Path, llama: LlamaRuntime) -> None:
    model = a_model(weights, llama, total_timeout_seconds=0.5)
    await heard(a_model(weights, llama), a_prompt("hi", tokens=1))
    with pytest.raises(ProviderFailed, match=r"not complete after 0\.5 s") as caught:
        await heard(model, a_prompt("Tell a very long story.", tokens=250))
    assert caught.value.kind is FailureKind.TIMEOUT
    await falls_idle()


async def test_who_waits_too_long_for_others_is_told_so(weights: Path, llama: LlamaRuntime) -> None:
    model = a_model(weights, llama)
    stream = begun(model, a_prompt("Tell a very long story.", tokens=250))
    async for _ in stream:
        break
    with pytest.raises(ProviderFailed, match="busy with other answers") as caught:
        await heard(a_model(weights, llama, total_timeout_seconds=0.1), a_prompt("hi"))
    assert caught.value.kind is FailureKind.TIMEOUT
    await stream.aclose()


async def test_nobody_else_on_the_machine_can_ask_the_model(weights: Path, llama: LlamaRuntime) -> None:
    before = _own_sockets()
    await heard(a_model(weights, llama), a_prompt("hi", tokens=1))
    opened = _own_sockets() - before
    assert opened, "the package opens a socket, wanted or not"
    assert not opened & {line[9] for line in _table("tcp")} | opened & {line[9] for line in _table("tcp6")}
    paths = [line[7] for line in _table("unix") if line[6] in opened and len(line) > 7]
    assert len(paths) == len(opened)
    assert not any(map(os.path.exists, paths)), "nobody can find it"


def _own_sockets() -> set[str]:
    with os.scandir("/proc/self/fd") as entries:
        links = [os.path.realpath(entry.path) for entry in entries]
    return {link.partition("socket:[")[2].rstrip("]") for link in links if "socket:[" in link}


def _table(kind: str) -> list[list[str]]:
    return [line.split() for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]]


async def test_a_model_that_was_let_go_is_loaded_again(weights: Path) -> None:
    llama = LlamaRuntime()
    model = a_model(weights, llama)
    assert text_of(await heard(model, a_prompt("hi", tokens=3)))
    await llama.close()
    assert text_of(await heard(model, a_prompt("hi", tokens=3)))
    await llama.close()


async def test_an_answer_under_way_ends_when_everything_is_let_go(weights: Path) -> None:
    llama = LlamaRuntime()
    asking = asyncio.create_task(heard(a_model(weights, llama), a_prompt("Tell a very long story.", tokens=250)))
    await asyncio.sleep(0.05)
    await asyncio.wait_for(llama.close(), 60)
    with pytest.raises(ProviderFailed):
        await asking


async def test_another_window_takes_the_place_of_the_first(weights: Path, llama: LlamaRuntime) -> None:
    table = msgspec.structs.replace(at(weights), models={"small": ModelCard(window_tokens=256)})
    narrow = LocalProvider("here", table, model_card(table), llama)
    long = a_prompt("word " * 300, tokens=2)
    with pytest.raises(ProviderFailed):
        await heard(narrow, long)
    (*_, done) = await heard(a_model(weights, llama), long)
    assert isinstance(done, TurnDone)
    assert done.usage.input_tokens > 256


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "is not a GGUF file"),
        (b"<html>Not found</html>", "is not a GGUF file"),
        (b"GGUF" + bytes(200), "has version 0 of the GGUF format"),
        (b"GGUF\x03\0\0\0" + b"\xff" * 200, "is damaged"),
    ],
)
async def test_what_is_no_model_is_told_in_one_sentence(
    tmp_path: Path, llama: LlamaRuntime, content: bytes | None, why: str
) -> None:
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ProviderFailed) as caught:
        await heard(a_model(path, llama), a_prompt("hi"))
    assert caught.value.kind is FailureKind.UNUSABLE
    assert caught.value.refused
    assert why in caught.value.detail
    assert "Set path to a complete GGUF file" in caught.value.detail


async def test_a_model_that_was_fetched_in_part_does_no_harm(
    weights: Path, tmp_path: Path, llama: LlamaRuntime
) -> None:
    path = tmp_path / "half.gguf"
    with weights.open("rb") as whole:
        path.write_bytes(whole.read(50_000_000))
    with pytest.raises(ProviderFailed) as caught:
        await heard(a_model(path, llama), a_prompt("hi"))
    assert caught.value.kind is FailureKind.UNUSABLE
    assert text_of(await heard(a_model(weights, llama), a_prompt("hi", tokens=3)))


async def test_a_model_without_room_is_not_loaded(
    weights: Path, llama: LlamaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "available_bytes", lambda: 200 * 1024 * 1024)
    with pytest.raises(ProviderFailed, match=r"needs about \d+ MiB of memory, and 200 MiB are free") as caught:
        await heard(a_model(weights, llama), a_prompt("hi"))
    assert caught.value.kind is FailureKind.UNAVAILABLE


def test_the_system_says_how_much_memory_can_be_had() -> None:
    available = native.available_bytes()
    assert available is not None
    assert available > 16 * 1024 * 1024


def test_what_is_known_of_a_model_comes_from_its_file_or_its_owner(weights: Path) -> None:
    plain = ModelProvider(dialect=DialectName.LOCAL, path=str(weights))
    assert local.model_name(plain) == weights.stem
    card = model_card(plain)
    assert (card.window_tokens, card.max_output_tokens, card.tools) == (8192, 2048, "schema")
    said = msgspec.structs.replace(plain, models={weights.stem: ModelCard(window_tokens=512, tools="none")})
    assert (model_card(said).window_tokens, model_card(said).max_output_tokens, model_card(said).tools) == (
        512,
        128,
        "none",
    )
    with pytest.raises(ModelNotFound):
        local.model_name(plain, "another")


def test_nothing_native_is_loaded_before_a_model_is_asked(weights: Path) -> None:
    code = f"""
import sys
from palyra.core.model.catalog import DialectName, ModelProvider
from palyra.providers.local.llama import LlamaRuntime
from palyra.providers.local.provider import LocalProvider, model_card
table = ModelProvider(dialect=DialectName.LOCAL, path={str(weights)!r})
LocalProvider("here", table, model_card(table), LlamaRuntime())
sys.exit("xllamacpp" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_without_the_extra_it_is_said_what_to_install(
    weights: Path, llama: LlamaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(ProviderFailed, match=r"pip install 'palyra\[local\]'") as caught:
        await heard(a_model(weights, llama), a_prompt("hi"))
    assert caught.value.kind is FailureKind.UNUSABLE


async def test_a_package_that_lacks_a_system_library_is_said_to_lack_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "libgomp.so.1: cannot open shared object file"
    (tmp_path / "xllamacpp.py").write_text(f"raise ImportError({reason!r})\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "xllamacpp", raising=False)
    llama = LlamaRuntime()
    try:
        with pytest.raises(ProviderFailed, match=f"cannot be loaded: {reason}.*apt-get install libgomp1") as caught:
            await heard(a_model(tmp_path / "any.gguf", llama), a_prompt("hi"))
    finally:
        await llama.close()
    assert caught.value.kind is FailureKind.UNUSABLE
