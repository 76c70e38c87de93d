"""Secrets are hidden, and figures that only sound like them are not."""

from time import process_time

import pytest

from palyra.core.text.redaction import HIDDEN, find_secrets, has_secret, hide_values, redact, redact_fields


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


BEGIN, END = "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"
BODY = [
    "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj",
    "MzEfYyjiWA4R4/M2bS1GB4t7NXp98C3SC6dVMvDuictGeurT8jNbvJZHtCSuYEvu",
    "N7gCk3==",
]
KEY = [BEGIN, *BODY, END]
KEYS = {
    "lines": "\n".join(KEY),
    "lines of Windows": "\r\n".join(KEY),
    "in JSON": '{"private_key": "' + "\\n".join(KEY) + '\\n"}',
    "joined by spaces": " ".join(KEY),
    "joined by nothing": "".join(KEY),
    "indented": "\n".join(f"      {line}" for line in KEY),
    "numbered": "\n".join(f"  {number}\t{line}" for number, line in enumerate(KEY, 1)),
    "in a diff": "\n".join(f"+{line}" for line in KEY),
    "in a mail": "\n".join(f"> {line}" for line in KEY),
    "literals": "\n".join(f'    "{line}\\n"' for line in KEY),
    "added literals": " +\n".join(f"'{line}\\n'" for line in KEY),
    "encrypted": "\n".join([BEGIN, "Proc-Type: 4,ENCRYPTED", "DEK-Info: AES-128-CBC,0123", "", *BODY, END]),
    "of PGP": "\n".join(["-----BEGIN PGP PRIVATE KEY BLOCK-----", "", *BODY, "-----END PGP PRIVATE KEY BLOCK-----"]),
    "cut off": "\n".join(KEY[:3]),
    "cut off on one line": " ".join(KEY[:3]),
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_a_private_key_is_hidden_however_it_is_written_and_nothing_behind_it(key: str) -> None:
    hidden = redact(f"before {key}\n\nrm -rf x; echo done\n")
    assert not any(line in hidden for line in BODY)
    assert hidden.startswith("before ")
    assert "rm -rf x; echo done" in hidden


@pytest.mark.parametrize(
    "text",
    [
        "echo -----BEGIN PRIVATE KEY-----\nrm -rf x",
        "echo -----BEGIN PRIVATE KEY----- ; rm -rf x",
        "-----BEGIN PRIVATE KEY-----\nrm -rf x\n-----END PRIVATE KEY-----",
        f"{BEGIN}\nMIIE\nrm -rf x\n{BEGIN}\nMIIE",
        "curl https://x:y\nrm -rf x@",
        "curl https://x:" + "y" * 1100 + ";rm -rf x@",
    ],
)
def test_what_only_begins_like_a_secret_hides_nothing_else(text: str) -> None:
    assert "rm -rf x" in redact(text)


def test_it_is_told_where_the_secrets_are() -> None:
    text = f"a ghp_{'a1' * 18} and {KEYS['lines']} end"
    assert [text[start:end] for start, end in find_secrets(text)] == [f"ghp_{'a1' * 18}", KEYS["lines"]]
    assert has_secret(text)
    assert find_secrets("nothing here") == []


@pytest.mark.parametrize(
    "text",
    [BEGIN * 500, f"{BEGIN}{' ' * 16000}", f"{BEGIN}{chr(10) * 16000}", f"{BEGIN} {'A' * 16000}!", "://a:" * 3000],
    ids=["beginnings", "spaces", "lines", "letters", "addresses"],
)
def test_a_text_that_is_made_to_hurt_takes_no_time(text: str) -> None:
    # Of four times the length it takes some four times as long, and not sixteen times.
    def took(times: int) -> float:
        began = process_time()
        for _ in range(3):
            redact(text * times)
        return process_time() - began

    assert min(took(4) for _ in range(3)) < 40 * max(min(took(1) for _ in range(3)), 0.001)


def test_fields_are_hidden_by_their_exact_names_only() -> None:
    fields = {"token": "abc", "API-Key": "abc", "prompt_tokens": 12, "tokens": "many", "token_count": 3, "n": None}
    assert redact_fields(fields) == fields | {"token": HIDDEN, "API-Key": HIDDEN}


@pytest.mark.parametrize("text", ["", "the task is risky-business", "bearer of news", "http://a.b/c", "user@host:22"])
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


# -- by value

KNOWN = {"github": b"hunter2-hunter2", "quoted": b'say "hi" & go', "short": b"abc", "longer": b"hunter2-hunter2-longer"}


def redact_values(text: str, known: dict[str, bytes]) -> str:
    return hide_values(text, ((value, name) for name, value in known.items()))


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
