"""Secrets are found with exact bounds, what only looks like one is not, and no text takes long."""

import time

import pytest

from palyra.core.text.secret_patterns import secret_spans

PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\n"
    + ("MIIEpAIBAAKCAQEA1fT9x0Zq7Wk4JmR2" * 2 + "\n") * 5
    + "-----END RSA PRIVATE KEY-----"
)


def sure(text: str) -> list[str]:
    return [text[span.start : span.end] for span in secret_spans(text) if span.is_sure]


@pytest.mark.parametrize(
    "value",
    [
        "sk-proj-4f9a8b7c6d5e4f3a2b1c",
        "sk-ant-api03-Zk3mQ8xV1pL7wN2rT9yB",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "github_pat_11ABCDE0Y0abXyz7Qk_9vT3mPLs8",
        "AKIA2E0A8F3B244C9986",
        "xoxb-17653672481-19874698323-pdFZKVeTuE8sk7oOcHrzqqgy",
        "AIzaSyD9tSrke72PouQMnMX-a7eZSW0jkFMBWY0",
        "glpat-9vX2kQ7mZpL4nR8tW1sG",
        "npm_k3Jq0dYk2b9cUuV7aQ1eZpL5nR8tW4sG6hMf",
        "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
        "SG.ngeVfQFYQlKU0ufo8x5d1A.TwL2iGABf9DHoTf-09kqeF8tAmbihYzrnopKc",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w",
        "123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw",
        PEM,
    ],
)
@pytest.mark.parametrize("around", ["{}", "use {} for it", 'key="{}",', "(see {})", "KEY={}\nNEXT=1"])
def test_a_token_is_found_where_it_stands_and_not_a_letter_more(value: str, around: str) -> None:
    assert sure(around.format(value)) == [value]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("DB_PASSWORD=q8#Vt2!mZp$x", "q8#Vt2!mZp$x"),
        (
            "export AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYzK3mQ8xV1p",
            "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzK3mQ8xV1p",
        ),
        ('"client_secret": "GvX92kQ7mZpL4nR8tW1sGb"', "GvX92kQ7mZpL4nR8tW1sGb"),
        (r"{\"api_key\": \"9f86d081884c7d659a2feaa0c55ad015\"}", "9f86d081884c7d659a2feaa0c55ad015"),
        ("apiKey: '7c9e6679-7425-40de-944b-e07fc1f90ae7'", "7c9e6679-7425-40de-944b-e07fc1f90ae7"),
        ("password: Winter2024!", "Winter2024!"),
        ("my password is Tr0ub4dor&3x, thanks", "Tr0ub4dor&3x"),
        ("Authorization: Bearer k3Jq0dYk2b9cUuV7aQ1e", "k3Jq0dYk2b9cUuV7aQ1e"),
        ("postgresql://ana:hunter2x@db/palyra", "hunter2x"),
        (
            "AccountKey=k3Jq0dYk2b9cUuV7aQ1eZpL5nR8tW4sG6hMf==;EndpointSuffix=x",
            "k3Jq0dYk2b9cUuV7aQ1eZpL5nR8tW4sG6hMf==",
        ),
    ],
)
def test_the_value_of_a_telling_name_is_found(text: str, value: str) -> None:
    assert sure(text) == [value]


@pytest.mark.parametrize(
    "text",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "password=changeme",
        "API_KEY=your-key-here",
        "token: ${TOKEN}",
        "token=<token>",
        'secret = "xxxxxxxxxxxxxxxx"',
        "token = get_token(session)",
        "password=args.password, user=args.user",
        "max_tokens: 4096, prompt_tokens=120",
        "the token is invalid, and the secret is base64-encoded",
        "password: process.env.DB_PASSWORD",
        '"js-tokens": "^4.0.0", "jsonwebtoken": "9.0.2-beta.12345678"',
        '"integrity": "sha512-RdJUflcE3cUzKiMqQgsCu06FPu9UdIJO0beYbPhHN4k6apgJtifcoCtT9bcx/PKQ=="',
        'hash = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"',
        "2aa55ec5f0d3b1e8c7a6f9d2e4b8c1a0f3e5d7b9",
        "7c9e6679-7425-40de-944b-e07fc1f90ae7",
        "class sk-folding-cube-child-2",
        "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----",
        "-----BEGIN CERTIFICATE-----\nMIIEpAIBAAKCAQEA1fT9x0Zq7Wk4JmR2MIIE\n-----END CERTIFICATE-----",
        "https://user:password@host/x and https://x/y:z",
        "password_file=/run/secrets/db_password1",
        "[sealed:abcdefghij234567]",
    ],
)
def test_what_is_no_secret_is_left(text: str) -> None:
    assert sure(text) == []


def test_an_open_key_block_does_not_swallow_what_follows() -> None:
    cut = PEM.splitlines()[:4]
    text = "\n".join([*cut, "rm -rf ~", "echo done"])
    assert sure(text) == ["\n".join(cut)]
    assert sure("-----BEGIN PRIVATE KEY-----; rm -rf ~ #") == []
    assert sure(f"-----BEGIN PRIVATE KEY-----\nrm -rf ~; $(x)\n{PEM}") == [PEM]


@pytest.mark.parametrize(
    "piece",
    [
        "sk-", "eyJ", "eyJaaaaaaaaaaaa.", "-----BEGIN PRIVATE KEY-----\n", "://a:", "password=", 'password="', "token:",
        "secret is ", "bearer ", "a" * 50, "SG.aaaaaaaaaaaaaaaa.", "0123456789:AA", "key key_", "\\\"", "-----BEGIN ",
        "-----BEGIN PRIVATE KEY-----\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "password==" * 2, "x@://",
    ],
)  # fmt: skip
def test_a_text_made_to_hurt_takes_as_long_as_another(piece: str) -> None:
    def seconds(size: int) -> float:
        text = (piece * (size // len(piece) + 1))[:size]
        return min(_timed(text) for _ in range(3))

    # Eight times the text may take eight times as long and some more, not sixty-four times.
    assert seconds(160_000) < 32 * max(seconds(20_000), 0.004)


def _timed(text: str) -> float:
    begun = time.thread_time()
    secret_spans(text)
    return time.thread_time() - begun
