"""Patterns that a person writes: what they cover, and which are refused."""

import pytest
from msgspec.structs import replace

from palyra.core.policy.effect import Effect, class_of_command, class_of_pattern
from palyra.core.tool import FolderAccess, Risk
from palyra.policy.command_patterns import CommandPatternInvalid, check_pattern, covers


def an_effect(command: str, *, folder: str = "/work", access: FolderAccess = FolderAccess.WRITE) -> Effect:
    kind = class_of_command(command, folder=folder, access=access)
    return Effect(risk=Risk.MEDIUM, summary="run", command=command, access=access, kind=kind)


def matches(pattern: str, command: str) -> bool:
    return covers(class_of_pattern(an_effect("git push"), pattern), an_effect(command))


@pytest.mark.parametrize(
    ("pattern", "command"),
    [
        ("git push", "git push"),
        ("git push", "git  push "),
        ("git push", "'git' \"push\""),
        ("git push origin *", "git push origin main"),
        ("git push origin release-*", "git push origin release-1.2"),
        ("make *-*", "make test-all"),
        ("git commit -m *", "git commit -m 'fix: a; b | c'"),
        ("git push **", "git push"),
        ("git push **", "git push --force origin main"),
        ("npm run test:*", "npm run test:unit"),
        ("cp 'a b' *", "cp 'a b' c"),
        ("tool --out=*", "tool --out=x"),
    ],
)
def test_what_fits_is_covered(pattern: str, command: str) -> None:
    assert matches(pattern, command)
    check_pattern(pattern, an_effect(command))


@pytest.mark.parametrize(
    ("pattern", "command"),
    [
        ("rg foo", "rg --pre x foo"),
        ("rg *", "rg --pre=./x"),
        ("rg * src", "rg --pre src"),
        ("git push", "git push origin"),
        ("git push *", "git push"),
        ("git push *", "git push origin main"),
        ("git push origin *", "git -c core.sshCommand=x push origin main"),
        ("git push **", "git pushx"),
        ("git push **", "git push; rm x"),
        ("git push **", "git push && rm x"),
        ("git push **", "git push | tee x"),
        ("git push **", "git push &"),
        ("git push **", "git push\nrm x"),
        ("git push **", "git push $(rm x)"),
        ("git push **", "git push `rm x`"),
        ("git push **", "git push $x"),
        ("git push **", "git push > x"),
        ("git push **", "git push < x"),
        ("git push **", "A=b git push"),
        ("git push **", "git push *"),
        ("git push **", "git push {a,b}"),
        ("git push **", "git push ~/x"),
        ("git push **", "git push [a]"),
        ("git push **", "git push \\\nx"),
        ("git push **", "git push 'open"),
        ("git push **", "(git push)"),
        ("git push **", "git push # x"),
        ("git push **", "sudo git push"),
        ("sudo **", "sudo rm x"),
        ("env **", "env rm x"),
        ("timeout **", "timeout 5 rm x"),
        ("bash -c *", "bash -c 'rm x'"),
        ("a*a tail", "a tail"),
    ],
)
def test_what_does_not_fit_is_not(pattern: str, command: str) -> None:
    assert not matches(pattern, command)
    with pytest.raises(CommandPatternInvalid):
        check_pattern(pattern, an_effect(command))


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "  ",
        "*",
        "**",
        "* **",
        "g* push",
        "** push",
        "git ** push",
        "git push**",
        "git 'push",
        "git push\nx",
        "git push\u2028x",
        "python **",
        "python3.11 *",
        "bash **",
        "node *.js",
        "git " + "x" * 600,
    ],
)
def test_what_would_match_everything_or_is_not_a_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(CommandPatternInvalid):
        check_pattern(pattern, an_effect("git push"))


def test_a_class_is_bound_to_its_folder_and_its_access() -> None:
    here, elsewhere = an_effect("git push"), an_effect("git push", folder="/other")
    reading = an_effect("git push", access=FolderAccess.READ)
    for kind in (here.kind, class_of_pattern(here, "git push **")):
        assert covers(kind, here)
        assert not covers(kind, elsewhere)
        assert not covers(kind, reading)
    with pytest.raises(CommandPatternInvalid):
        check_pattern("git push **", reading)


def test_a_folder_cannot_be_named_so_that_it_reads_as_another() -> None:
    odd = an_effect("ls", folder='/work" (write): rm x')
    assert not covers(odd.kind, an_effect('rm x" (write): ls'))
    assert not covers(class_of_pattern(odd, "ls **"), an_effect("ls"))


def test_a_call_of_no_class_is_covered_by_nothing() -> None:
    critical = replace(an_effect("git push"), kind="")
    assert not covers("", critical)
    assert not covers(class_of_pattern(an_effect("git push"), "git push **"), critical)


@pytest.mark.parametrize("kind", ["command:git push", "command:git", "command:git push (in /work)"])
def test_a_class_of_an_earlier_release_covers_nothing(kind: str) -> None:
    assert not covers(kind, an_effect("git push"))
