"""What can be typed besides messages."""

import pytest

from palyra.cli.chat.slash_commands import HELP, SlashCommand, help_lines, parse, unknown


@pytest.mark.parametrize(
    ("text", "slash"),
    [
        ("/help", SlashCommand("/help", "")),
        ("/sessions 2 ", SlashCommand("/sessions", "2")),
        ("hello", None),
        (" /etc/passwd is what?", None),
        ("", None),
    ],
)
def test_commands_begin_with_a_slash(text: str, slash: SlashCommand | None) -> None:
    assert parse(text) == slash


def test_the_help_names_every_command() -> None:
    shown = "\n".join(help_lines(typing_along=True))
    assert all(name in shown for name in HELP)


def test_a_plain_terminal_is_told_that_it_must_wait() -> None:
    assert "after the answer" in "\n".join(help_lines(typing_along=False))


def test_an_unknown_command_gets_a_hint() -> None:
    assert "Did you mean /sessions?" in unknown(SlashCommand("/session", ""))
    assert "/help" in unknown(SlashCommand("/xyz", ""))
