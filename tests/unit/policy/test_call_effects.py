"""What calls would do, by their arguments alone, and what an answer about one stands for."""

import pytest

from palyra.core.tool import JsonObject, Risk, ToolSpec
from palyra.policy.call_effects import effect_of_call

TOOL = ToolSpec(name="mcp.box.do", description="", parameters={}, risk=Risk.MEDIUM)


def test_a_call_is_judged_by_what_its_arguments_name() -> None:
    effect = effect_of_call(TOOL, {"options": [{"url": "https://docs.example.org/x"}], "path": "/home/ana/a/../b"})
    assert (effect.risk, effect.hosts, effect.paths) == (Risk.HIGH, ("docs.example.org",), ("/home/ana/b",))
    effect = effect_of_call(TOOL, {"command": "sudo ls"})
    assert (effect.risk, effect.command, effect.kind) == (Risk.CRITICAL, "sudo ls", "")
    assert effect_of_call(TOOL, {"text": "anything"}).risk is Risk.MEDIUM


@pytest.mark.parametrize(
    ("arguments", "command", "kind"),
    [
        ({"command": "git status -s"}, "git status -s", 'exact command with {"command":"git status -s"}'),
        ({"cmd": ["git", "push"]}, "git push", 'exact command with {"cmd":["git","push"]}'),
        ({"cmd": "git", "args": ["push"]}, "git push", 'exact command with {"args":["push"],"cmd":"git"}'),
        ({"argv": ["rm", "my file"]}, "rm 'my file'", 'exact command with {"argv":["rm","my file"]}'),
        ({"command": "ls", "depth": 5}, "ls", 'exact command with {"command":"ls","depth":5}'),
        ({"command": "ls", "cwd": "/srv"}, "ls", 'exact command with {"command":"ls","cwd":"/srv"}'),
        ({"command": "sudo ls"}, "sudo ls", ""),
        ({"command": "ls", "stdin": "x" * 300}, "ls", ""),
        ({"command": "ls", "script": "pwd"}, "ls\npwd", ""),
        ({"commands": ["ls", "pwd"]}, "ls\npwd", ""),
        ({"command": "ls", "host": "example.org"}, "ls", ""),
    ],
)
def test_an_answer_about_a_command_is_none_about_what_else_is_said(
    arguments: JsonObject, command: str, kind: str
) -> None:
    effect = effect_of_call(TOOL, arguments)
    assert (effect.command, effect.kind) == (command, kind)


def test_a_second_command_is_no_way_around_the_first() -> None:
    effect = effect_of_call(TOOL, {"command": "ls", "script": "sudo reboot"})
    assert (effect.risk, effect.kind) == (Risk.CRITICAL, "")
    deep: JsonObject = {"command": "sudo reboot"}
    for _ in range(12):
        deep = {"options": [deep]}
    assert effect_of_call(TOOL, deep).risk is Risk.CRITICAL


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"url": "https://example.org/a?b"}, "host:example.org"),
        ({"url": "HTTPS://Example.ORG./a", "max_length": 5000}, "host:example.org"),
        ({"url": "https://example.org:443/a"}, "host:example.org"),
        ({"url": "http://example.org/"}, "host:http://example.org"),
        ({"url": "https://example.org:8443/"}, "host:https://example.org:8443"),
        ({"url": "https://example.org/", "method": "DELETE"}, 'host:example.org with {"method":"DELETE"}'),
        ({"url": "https://example.org/", "body": "x" * 300}, ""),
        ({"url": "https://example.org/", "next": "https://example.com/"}, ""),
        ({"url": "https://example.org/", "next": "https://example.org:8443/"}, ""),
    ],
)
def test_an_answer_about_a_host_is_none_about_another_port_scheme_or_method(arguments: JsonObject, kind: str) -> None:
    assert effect_of_call(TOOL, arguments).kind == kind


@pytest.mark.parametrize(
    "arguments",
    [
        {"url": "HTTP://EVIL.example/x"},
        {"url": " https://evil.example./x"},
        {"url": "https://good.example@evil.example/"},
        {"url": "https://evil.example\\@good.example/"},
        {"url": "https://\uff45\uff56\uff49\uff4c.example/"},
        {"link": "wss://evil.example/"},
        {"host": "Evil.Example:443"},
        {"list": [{"deep": {"https://evil.example/": 1}}]},
    ],
)
def test_a_host_is_found_however_it_is_spelled(arguments: JsonObject) -> None:
    assert "evil.example" in effect_of_call(TOOL, arguments).hosts


@pytest.mark.parametrize(
    "arguments",
    [
        {"file_path": "/etc/shadow"},
        {"filePath": "/etc/shadow"},
        {"uri": "file:///etc/shadow"},
        {"uri": "FILE:///etc/%73hadow"},
        {"whatever": "/etc/x/../shadow"},
        {"moves": [{"a": "/etc/shadow"}]},
    ],
)
def test_a_path_is_found_by_whatever_name_it_goes(arguments: JsonObject) -> None:
    effect = effect_of_call(TOOL, arguments)
    assert (effect.paths, effect.risk) == (("/etc/shadow",), Risk.CRITICAL)
