"""Command lines, taken apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.policy.commands import any_prefix, common_prefixes, read


def test_the_words_of_each_command_are_found() -> None:
    line = read("cd /tmp && git push 'my branch' | tee log; ls\npwd")
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
def test_what_is_not_plain_shares_no_prefix(text: str) -> None:
    assert common_prefixes(read(text)) == set()


def test_a_plain_line_shares_what_its_commands_share() -> None:
    assert common_prefixes(read("git add a")) == {"git", "git add", "git add a"}
    assert common_prefixes(read("git add a && git add b")) == {"git", "git add"}
    assert common_prefixes(read("git add a && rm b")) == set()


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
    assert prefix in any_prefix(read(text))


@given(st.text(alphabet=" \t\nabc'\"\\;|&<>()$`{}#=-/", max_size=40))
def test_any_line_can_be_read(text: str) -> None:
    line = read(text)
    assert common_prefixes(line) <= any_prefix(line)


@given(
    st.lists(st.sampled_from(["git", "status", "x y", "it's", '"', "*", "#"]), min_size=1),
    st.sampled_from(
        ["; rm x", " && rm x", " | rm x", "\nrm x", " & rm x", " $(rm x)", " `rm x`", " > x", "; sh -c rm"]
    ),
)
def test_nothing_hides_behind_a_permitted_prefix(words: list[str], behind: str) -> None:
    import shlex

    assert common_prefixes(read(shlex.join(words) + behind)) <= {"rm"}
