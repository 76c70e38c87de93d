"""Secrets are hidden, and figures that only sound like them are not."""

import pytest

from palyra.core.redact import HIDDEN, redact, redact_fields, redact_values


@pytest.mark.parametrize(
    "secret",
    [
        "palyra_3xJq0dYk2b9cUuV7aQ1eZpL5nR8tW4sG6hMfKiO",
        "sk-proj-4f9a8b7c6d5e4f3a2b1c",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "xoxb-17653672481-19874698323",
        "AKIAIOSFODNN7EXAMPLE",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w",
    ],
)
def test_what_has_the_shape_of_a_secret_is_hidden_wherever_it_stands(secret: str) -> None:
    hidden = redact(f"it said {secret}, and left")
    assert secret not in hidden
    assert hidden.startswith("it said ")
    assert hidden.endswith(", and left")


def test_a_bearer_token_and_the_password_of_an_address_are_hidden() -> None:
    assert redact("Authorization: Bearer abc.DEF-123456") == f"Authorization: Bearer {HIDDEN}"
    assert redact("postgresql://ana:hunter2@db/palyra") == f"postgresql://{HIDDEN}@db/palyra"


def test_a_private_key_is_hidden_whole_even_if_it_is_cut_off() -> None:
    assert "MIIE" not in redact("x\n-----BEGIN PRIVATE KEY-----\nMIIEvQ\nMIIE")


def test_fields_are_hidden_by_their_exact_names_only() -> None:
    fields = {"token": "abc", "API-Key": "abc", "prompt_tokens": 12, "tokens": "many", "token_count": 3, "n": None}
    assert redact_fields(fields) == fields | {"token": HIDDEN, "API-Key": HIDDEN}


@pytest.mark.parametrize("text", ["", "the task is risky-business", "bearer of news", "http://a.b/c", "user@host:22"])
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


# -- by value

KNOWN = {"github": b"hunter2-hunter2", "quoted": b'say "hi" & go', "short": b"abc", "longer": b"hunter2-hunter2-longer"}


def test_a_known_value_is_hidden_by_name() -> None:
    assert redact_values("x hunter2-hunter2 y hunter2-hunter2", KNOWN) == "x [secret github] y [secret github]"


def test_the_longest_of_two_values_is_hidden_first() -> None:
    assert redact_values("hunter2-hunter2-longer", KNOWN) == "[secret longer]"


@pytest.mark.parametrize("text", ['say "hi" & go', r"say \"hi\" & go", "say%20%22hi%22%20%26%20go"])
def test_a_known_value_is_hidden_as_json_and_addresses_have_it(text: str) -> None:
    assert redact_values(f"<{text}>", KNOWN) == "<[secret quoted]>"


def test_a_value_of_fewer_than_eight_characters_is_left() -> None:
    assert redact_values("abc abcdef", KNOWN) == "abc abcdef"


def test_bytes_that_are_no_text_hurt_nobody() -> None:
    assert redact_values("plain text", {"key": b"\xff\xfe" * 10, "nul": b"\0" * 10}) == "plain text"


def test_a_value_of_several_lines_is_hidden_line_by_line() -> None:
    body = ["MIIEvQIBADANBgkqhkiG9w0BAQEFAASC", "BKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"]
    key = "\n".join(["-----BEGIN KEY-----", *body, "-----END KEY-----"]).encode()
    numbered = "\n".join(f"  {place}\t{line}" for place, line in enumerate(key.decode().splitlines(), 1))
    for text in (key.decode(), key.decode().replace("\n", "\r\n"), numbered, f"near {body[1]} it failed"):
        hidden = redact_values(text, {"deploy": key})
        assert not any(line in hidden for line in body), text
        assert "[secret deploy]" in hidden
    assert redact_values("-----BEGIN KEY-----", {"deploy": key}) == "-----BEGIN KEY-----"
