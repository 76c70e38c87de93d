"""Reading policy files: what comes on top of what, what is wrong and where, and what tells two sets apart."""

from pathlib import Path

import pytest

from palyra.home import Home
from palyra.policy import cedar
from palyra.policy.cedar_source import split
from palyra.policy.loader import PolicyInvalid, combine, examine, load, shipped
from tests.support.unprivileged import ordinary_user
from tests.unit.policy.asking import write_policy

GOOD = '@id("mine") permit (principal, action == Action::"run", resource == Tool::"time.now");\n'
RENAMED = "context.has_channel was renamed to context.approver_reachable. Write approver_reachable instead."


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_the_shipped_policies_hold_against_the_schema() -> None:
    assert cedar.find_problems(shipped()) == []
    assert all(policy.id and policy.reason for policy in shipped())


def test_a_home_without_files_has_the_shipped_policies(home: Home) -> None:
    loaded = load(home)
    assert {policy.id for policy in loaded.items} == {policy.id for policy in shipped()}
    assert loaded.hash == combine(()).hash


def test_files_come_on_top_and_a_name_is_had_once(home: Home) -> None:
    path = write_policy(home, GOOD + '@id("grants-hold") forbid (principal, action, resource) when { false };')
    write_policy(home, "not a policy", "mine.cedar.bak")
    found = {policy.id: policy for policy in load(home).items}
    assert len(found) == len(shipped()) + 1
    assert (found["mine"].file, found["mine"].line, found["mine"].permits) == (str(path), 1, True)
    assert (found["grants-hold"].file, found["grants-hold"].line, found["grants-hold"].permits) == (str(path), 2, False)


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ("\n  permt (principal, action, resource);", 2, 3, "invalid policy effect: permt"),
        ("permit (princpal, action, resource);", 1, 9, "princpal"),
        ('permit (principal, action, resource)\nwhen { "}" == "}" } } // }\n;', 2, 21, "unexpected token `}`"),
        ("permit (principal, action, resource)\nwhen { 1 == 1 and true };", 2, 15, "unexpected token `and`"),
        ("permit (principal, action, resource) when { 'x' };", 1, 45, "invalid token"),
        ('permit (principal, action, resource)\nwhen { "open };\n', 2, 8, "invalid token"),
        ("// a comment; with a sign\npermit (principal, action, resource)", 2, 36, "unexpected end of input"),
        (GOOD + "permit (principal, action, resource) when { context.rsk == 1 };", 2, 53, "attribute `rsk`"),
        (GOOD + 'permit (principal, action == Action::"rnu", resource);', 2, 30, 'Action::"rnu"'),
        (GOOD + 'permit (principal == User::"a", action, resource);', 2, 22, "entity type `User`"),
        (GOOD + "permit (principal, action, resource) when { context.risk > 1 };", 2, 1, "String"),
        (GOOD + "\n  permit (principal, action, resource);", 3, 3, "no name"),
        (GOOD + "permit (principal, action, resource) when { context.has_channel };", 2, 53, RENAMED),
        (GOOD + 'permit (principal, action, resource) when { context["has_channel"] };', 2, 53, RENAMED),
        (GOOD + "permit (principal, action, resource) when { context has has_channel };", 2, 57, RENAMED),
        (GOOD + GOOD, 2, 1, "The policy 'mine' already exists"),
        ('@id("t") permit (principal == ?principal, action, resource);', 1, 1, "template"),
    ],
)
def test_a_fault_is_told_with_its_place(home: Home, text: str, line: int, column: int, says: str) -> None:
    path = write_policy(home, text)
    with pytest.raises(PolicyInvalid) as raised:
        load(home)
    assert len(raised.value.problems) == 1
    assert raised.value.detail.startswith(f"{path}:{line}:{column}: ")
    assert says in raised.value.detail


def test_all_faults_of_all_files_are_found(home: Home) -> None:
    paths = [write_policy(home, "permt (principal, action, resource);", f"{name}.cedar") for name in "ab"]
    _, problems = examine(paths)
    assert [problem.file for problem in problems] == [str(path) for path in paths]
    with pytest.raises(PolicyInvalid, match="Further problems: 1"):
        load(home)


def test_a_file_that_is_no_text_is_told(home: Home) -> None:
    path = write_policy(home, "")
    path.write_bytes(b"// one\n// \xff\n")
    with pytest.raises(PolicyInvalid, match=f"{path}:2:1: The file is not text"):
        load(home)


@ordinary_user
def test_a_file_that_can_not_be_read_is_told(home: Home) -> None:
    write_policy(home, GOOD).chmod(0)
    with pytest.raises(PolicyInvalid, match="cannot be read"):
        load(home)


@ordinary_user
@pytest.mark.parametrize("mode", [0o000, 0o100, 0o400])
def test_a_folder_that_can_not_be_read_is_not_taken_for_an_empty_one(home: Home, mode: int) -> None:
    write_policy(home, GOOD)
    home.policy.chmod(mode)
    with pytest.raises(PolicyInvalid, match="cannot be read"):
        load(home)
    home.policy.chmod(0o700)


def test_a_file_that_leads_nowhere_is_told(home: Home) -> None:
    home.policy.mkdir()
    (home.policy / "gone.cedar").symlink_to(home.path / "nowhere")
    with pytest.raises(PolicyInvalid, match="cannot be read: No such file"):
        load(home)


def test_the_hash_changes_with_all_that_decides_and_with_nothing_else(home: Home) -> None:
    plain = load(home).hash
    write_policy(home, GOOD)
    mine = load(home).hash
    write_policy(home, "// said differently\n\n" + GOOD)
    assert load(home).hash == mine != plain
    (home.policy / "mine.cedar").rename(home.policy / "other.cedar")
    assert load(home).hash == mine
    write_policy(home, GOOD.replace("time.now", "time.then"), "other.cedar")
    assert load(home).hash not in (mine, plain)


def test_an_annotation_says_what_it_says() -> None:
    (policy,) = split(r'@id("a") @reason("say \"no\"\n\u{e9}") @other forbid (principal, action, resource);', "f")
    assert (policy.id, policy.reason, policy.permits) == ("a", 'say "no"\né', False)
