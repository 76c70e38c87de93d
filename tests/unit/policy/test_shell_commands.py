"""Command lines, taken apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.policy.shell_commands import any_prefix, parse_command_line, simple


def test_the_words_of_each_command_are_found() -> None:
    line = parse_command_line("cd /tmp && git push 'my branch' | tee log; ls\npwd")
    assert line.commands == (("cd", "/tmp"), ("git", "push", "my branch"), ("tee", "log"), ("ls",), ("pwd",))
    assert line.separators == ("&&", "|", ";", "\n")
    assert line.is_plain


@pytest.mark.parametrize(
    "text",
    [
        "echo $HOME",
        "echo `date`",
        "echo $(date)",
        "cat < /etc/passwd",
        "echo x > y",
        "(git status)",
        "A=1 git status",
        "git status 'open",
        "sudo git status",
        "sh -c 'git status'",
        "diff <(ls) x",
        "git() { rm x; }; git status",
        "",
    ],
)
def test_what_is_not_plain_is_not_simple(text: str) -> None:
    assert simple(text) is None


def test_one_simple_command_has_certain_arguments() -> None:
    assert simple("git add a 'b c' \"d\"") == ("git", "add", "a", "b c", "d")
    assert simple("git add a && git add b") is None
    assert simple("git add *") is None


@pytest.mark.parametrize(
    ("text", "prefix"),
    [
        ("cd x; git push -f", "git push"),
        ("/usr/bin/git push", "git push"),
        ("sudo -u ana git push", "git push"),
        ("env A=1 nohup git push", "git push"),
        ("bash -lc 'cd x && git push'", "git push"),
        ("sh -c \"sh -c 'git push'\"", "git push"),
        ("eval git push", "git push"),
        ("if true; then git push; fi", "git push"),
        ("A=1 git push", "git push"),
        ("timeout 5 git push", "git push"),
    ],
)
def test_what_might_be_run_is_found(text: str, prefix: str) -> None:
    assert prefix in any_prefix(parse_command_line(text))


@given(st.text(alphabet=" \t\nabc'\"\\;|&<>()$`{}#=-/", max_size=40))
def test_any_line_can_be_read(text: str) -> None:
    line = parse_command_line(text)
    assert simple(text) in (None, *line.commands)


@given(
    st.lists(st.sampled_from(["git", "status", "x y", "it's", '"', "*", "#"]), min_size=1),
    st.sampled_from(
        ["; rm x", " && rm x", " | rm x", "\nrm x", " & rm x", " $(rm x)", " `rm x`", " > x", "; sh -c rm"]
    ),
)
def test_nothing_hides_behind_a_permitted_prefix(words: list[str], behind: str) -> None:
    import shlex

    assert simple(shlex.join(words) + behind) is None
