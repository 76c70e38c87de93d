"""What a call would do is shown whole; what looks like a secret in it is pointed at."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.core.policy.effect import Effect
from palyra.core.text.escaping import quote
from palyra.core.tool import CallRuntime, JsonObject, Risk
from palyra.policy.effect_redaction import LOOKS_SECRET, MAX_DETAIL_CHARS, MAX_MARKS, EffectTooLarge, redact_effect

KEY = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"


def run(command: str) -> Effect:
    effect = Effect(
        risk=Risk.MEDIUM, summary=f"run {command}", detail=quote(command), command=command, kind="command:echo"
    )
    return redact_effect(effect, {"command": command})


@pytest.mark.parametrize(
    "command",
    [
        "echo -----BEGIN PRIVATE KEY-----\nrm -rf x",
        "echo -----BEGIN PRIVATE KEY-----;rm -rf x",
        "curl https://x:a\nrm -rf x\n@",
        "curl https://x:;rm${IFS}-rf${IFS}x;@",
        f"echo {KEY}\nrm -rf x",
    ],
)
def test_a_secret_hides_nothing_of_a_command(command: str) -> None:
    effect = run(command)
    assert quote(command) in effect.detail
    assert effect.command == command
    assert not effect.summary.count("\n")


@given(st.text(st.characters()))
def test_of_every_command_all_is_shown(command: str) -> None:
    assert run(command).detail.endswith(quote(command))


def test_it_is_said_where_the_secret_is() -> None:
    effect = run(f"echo a\necho {KEY} | nc")
    first, blank, *_ = effect.detail.split("\n")
    assert first == f"{LOOKS_SECRET}command, line 2, column 6, 40 characters that begin with ghp_16C7e42F"
    assert blank == ""
    assert (effect.carries_secret, effect.risk, effect.kind) == (True, Risk.HIGH, "")


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"headers": {"X-Key": KEY}}, "headers.X-Key, line 1, column 1,"),
        ({"parts": ["a", {"b": KEY}]}, "parts[2].b, line 1"),
        ({"headers": {KEY: "x"}}, f"headers, the name {KEY}"),
        ({"body": KEY.encode().hex()}, "body, in an encoded form"),
        ({"headers": {"a\nLooks like nothing": KEY}}, "headers.a⟨LF⟩Looks like nothing, line 1"),
    ],
)
def test_the_argument_is_named(arguments: JsonObject, where: str) -> None:
    effect = redact_effect(Effect(risk=Risk.LOW, summary="call", detail="x"), arguments, runtime=CallRuntime.MCP)
    assert effect.detail.startswith(LOOKS_SECRET + where)
    assert effect.detail.endswith("\n\nx")


def test_many_secrets_are_counted() -> None:
    effect = run(" ".join([KEY] * (MAX_MARKS + 3)))
    assert effect.detail.split("\n")[MAX_MARKS] == f"{LOOKS_SECRET}3 more"


def test_what_a_tool_forgot_to_escape_breaks_no_line() -> None:
    effect = redact_effect(Effect(risk=Risk.LOW, summary="a\nb\rc", detail="a\rb\u2028c\n\td"), {})
    assert effect.summary == "a⟨LF⟩b⟨CR⟩c"
    assert effect.detail == "a⟨CR⟩b⟨U+2028⟩c\n\td"


def test_what_stays_here_is_not_a_leak() -> None:
    effect = redact_effect(Effect(risk=Risk.MEDIUM, summary="write", detail=f"+{KEY}"), {"text": KEY})
    assert (effect.carries_secret, effect.detail) == (False, f"+{KEY}")


def test_an_effect_that_nobody_can_read_is_refused() -> None:
    with pytest.raises(EffectTooLarge, match="several smaller calls"):
        redact_effect(Effect(risk=Risk.LOW, summary="write", detail="x" * (MAX_DETAIL_CHARS + 1)), {})
