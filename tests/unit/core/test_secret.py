"""What a secret may be called, hold and be used for."""

import pytest

from palyra.core.errors import Invalid
from palyra.core.ids import AgentId
from palyra.core.secret import (
    MAX_VALUE_BYTES,
    SecretNameInvalid,
    SecretScope,
    SecretScopeInvalid,
    SecretValue,
    SecretValueInvalid,
    check_name,
    check_scope,
    check_value,
    collide,
    header_value,
    host_name,
    may_use,
)

ONE, OTHER = AgentId("01JGKK8F5E000000000000000A"), AgentId("01JGKK8F5E000000000000000B")
SENT = SecretScope(hosts=("api.example.org",))


@pytest.mark.parametrize("name", ["a", "GITHUB_TOKEN", "0.9-beta", "x" * 64])
def test_a_good_name_is_taken(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "-x", ".x", "a b", "a/b", "ä", "x" * 65, "a\n", "a\0", "../x"])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(SecretNameInvalid):
        check_name(name)


@pytest.mark.parametrize("value", [b"x", b"\0\xff\n", b"x" * MAX_VALUE_BYTES])
def test_a_value_for_the_configuration_is_any_bytes(value: bytes) -> None:
    assert check_value(value, SecretScope()) == value


@pytest.mark.parametrize("value", [b"", b"x" * (MAX_VALUE_BYTES + 1)])
def test_a_value_is_neither_empty_nor_endless(value: bytes) -> None:
    with pytest.raises(SecretValueInvalid):
        check_value(value, SecretScope())


@pytest.mark.parametrize("value", [b"a\r\nX-Evil: 1", b"a\0b", b"caf\xc3\xa9", b" a", b"a ", b"a\n", b"x" * 9000])
def test_a_value_that_breaks_a_header_is_refused_where_it_would_be_sent(value: bytes) -> None:
    with pytest.raises(SecretValueInvalid):
        check_value(value, SENT)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("API.Example.org", "api.example.org"),
        ("example.org.", "example.org"),
        ("bücher.de", "xn--bcher-kva.de"),
        ("Example.org:8443", "example.org:8443"),
    ],
)
def test_a_host_has_one_form(given: str, kept: str) -> None:
    assert host_name(given) == kept
    assert check_scope(SecretScope(hosts=(given,))).hosts == (kept,)


@pytest.mark.parametrize(
    "host",
    [
        "",
        ".",
        "https://example.org",
        "example.org/x",
        "example.org:443",
        "example.org:",
        "example.org:0",
        "example.org:08443",
        "example.org:65536",
        "example.org:8443:1",
        "example.org:8443/x",
        "*.example.org",
        "a b",
        "[::1]",
        "a..b",
        "-a.org",
    ],
)
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(SecretScopeInvalid):
        host_name(host)


@pytest.mark.parametrize(
    "scope",
    [
        SecretScope(header=""),
        SecretScope(header="X Y"),
        SecretScope(header="X:\r\n"),
        SecretScope(header="Host"),
        SecretScope(header="content-length"),
        SecretScope(header="Accept-Encoding"),
        SecretScope(header="Proxy-Authorization"),
        SecretScope(format="no place"),
        SecretScope(format="{} {}"),
        SecretScope(format="{}\r\nX: y"),
        SecretScope(format=" {}"),
        SecretScope(tools=("a b",)),
        SecretScope(hosts=tuple(f"h{n}.org" for n in range(51))),
        SecretScope(agents=(AgentId("nobody"),)),
    ],
)
def test_a_scope_that_makes_no_sense_is_refused(scope: SecretScope) -> None:
    with pytest.raises(Invalid):
        check_scope(scope)


def test_a_secret_goes_to_its_hosts_for_its_agents_and_tools_only() -> None:
    narrow = SecretScope(hosts=("api.example.org",), agents=(ONE,), tools=("http.fetch",))

    assert may_use(narrow, host="api.example.org", agent_id=ONE, tool="http.fetch")
    assert not may_use(narrow, host="example.org", agent_id=ONE, tool="http.fetch")
    assert not may_use(narrow, host="api.example.org", agent_id=OTHER, tool="http.fetch")
    assert not may_use(narrow, host="api.example.org", agent_id=ONE, tool="mcp.call")
    assert may_use(SENT, host="api.example.org", agent_id=OTHER, tool="mcp.call")
    assert not may_use(SecretScope(), host="api.example.org", agent_id=ONE, tool="http.fetch")


def test_two_secrets_collide_where_one_request_would_carry_both() -> None:
    assert collide(SENT, SecretScope(hosts=("api.example.org", "b.org"), header="AUTHORIZATION"))
    assert not collide(SENT, SecretScope(hosts=("b.org",)))
    assert not collide(SENT, SecretScope(hosts=("api.example.org",), header="X-Key"))
    assert not collide(SecretScope(hosts=("a.org",), agents=(ONE,)), SecretScope(hosts=("a.org",), agents=(OTHER,)))
    assert collide(SecretScope(hosts=("a.org",), agents=(ONE,)), SecretScope(hosts=("a.org",)))
    assert not collide(SecretScope(hosts=("a.org",), tools=("x",)), SecretScope(hosts=("a.org",), tools=("y",)))


def test_a_format_with_the_mark_of_a_value_in_the_value_is_filled_once() -> None:
    assert header_value(SENT, b"a{}b") == "Bearer a{}b"


def test_a_value_does_not_print_itself() -> None:
    value = SecretValue("github", b"hunter2hunter2")
    assert "hunter2" not in f"{value} {value!r} {[value]}"
    assert value.reveal() == b"hunter2hunter2"
