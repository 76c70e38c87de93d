"""Command lines are cut where the shell cuts them."""

import shutil
import subprocess
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palyra.policy import risk
from palyra.policy.shell_commands import any_prefix, parse_command_line, simple
from palyra.policy.shell_lexer import lex

BASH = shutil.which("bash")


def words(text: str) -> list[str]:
    return [part.text for part in lex(text).parts if not part.is_sign]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("git status #'\nrm -rf x #'", ["git", "status", "rm", "-rf", "x"]),
        ("a#b c", ["a#b", "c"]),
        ("a\\", ["a\\"]),
        ("r\\\nm x", ["rm", "x"]),
        ("echo $'\\'' ; rm #'", ["echo", "'", "rm"]),
        ("echo $'\\x41\\102\\u0043'", ["echo", "ABC"]),
        ("ls 2>err x", ["ls", "err", "x"]),
        ('"a\\"b" \'c\\\' d\\ e', ['a"b', "c\\", "d e"]),
        ("cat <<'E' x\nit's\nE\nrm", ["cat", "x", "rm"]),
        ("cat <<-E\n\tit's\n\tE\nrm", ["cat", "rm"]),
        ('echo "${x:-\'}"; rm "\'"', ["echo", "${x:-'}", "rm", "'"]),
        ("echo $(cat #'\n); rm #'", ["echo", "$(cat #'\n)", "rm"]),
        ("echo $(echo '\\'); rm '", ["echo", "$(echo '\\')", "rm", ""]),
    ],
)
def test_words_are_cut_as_bash_cuts_them(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "git status #'\nrm x #'",
        "ls;>x rm x",
        "ls|<x rm x",
        "ls &>x rm x",
        "r\\\nm x",
        "echo $'\\'' ; rm x #'",
        "cat <<E\nit's\nE\nrm x\ncat <<E\nit's\nE",
        "git commit -m \"$(cat <<'E'\nit's\nE\n)\"; rm x; echo 'a'",
        "find . -exec rm x \\;",
        "find . " + "-exec ls \\; " * 30 + "-exec rm x \\;",
        "env -S 'rm x'",
        "timeout -k 5 -s KILL 10 rm x",
        "function f { rm x; }",
        "bash -o pipefail -c 'rm x'",
        "bash -c -- 'rm x'",
        'echo "`echo \\`rm x\\``"',
        "uv run rm x",
        "python3.11 -m rm x",
        "a[0]=1 rm x",
        "$EMPTY rm x",
        "$A ${B} $(true) rm x",
        "eval $A rm x",
        "\\2>x; rm x",
        "find . -exec find . -exec rm x ;",
    ],
)
def test_a_rule_that_forbids_a_program_is_not_evaded(text: str) -> None:
    assert "rm x" in any_prefix(parse_command_line(text))
    assert (simple(text) or ())[:2] != ("git", "status")


_PIECES = st.sampled_from([" ", " ", "\t", "\n", "a", "b", "'", '"', "\\", "#", ";", "&&", "\\\n", "$'", "a b", " #"])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_PIECES, min_size=1, max_size=14).map("".join))
def test_what_bash_runs_is_what_was_found(text: str) -> None:
    # Whatever is not there is told with its words: so bash says itself how it has cut the line.
    told = "command_not_found_handle() { printf '<%s>' \"$@\"; printf '\\n'; }\nPATH=\n"
    assert BASH is not None
    done = subprocess.run([BASH, "--norc", "-c", told + text], capture_output=True, text=True, timeout=60, check=False)
    line = parse_command_line(text)
    found = {"".join(f"<{word}>" for word in command) for command in line.commands}
    ran = [said for said in done.stdout.replace(">\n<", ">\0<").removesuffix("\n").split("\0") if said]
    if "syntax error" not in done.stderr and "unexpected EOF" not in done.stderr:
        assert set(ran) <= found


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000,
        "$(" * 50_000,
        "${" * 50_000,
        "uv run " * 14_000,
        "find " + "-exec sh " * 9_000,
        "find -exec " * 9_000,
        "a;" * 50_000,
    ],
)
def test_a_line_that_is_made_to_hurt_does_not(text: str) -> None:
    begun = time.process_time()
    risk.of_command(text)
    any_prefix(parse_command_line(text))
    assert time.process_time() - begun < 5


@pytest.mark.parametrize("text", ["'a'=/../bin/rm x", '"a=/../bin/rm" x', "\\a=/../bin/rm x"])
def test_a_program_whose_name_looks_like_a_variable_is_a_program(text: str) -> None:
    assert "rm x" in any_prefix(parse_command_line(text))
