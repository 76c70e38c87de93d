"""`palyra policy`: which policies there are, what is wrong with them, and what they say about a call."""

import json
from pathlib import Path

import pytest

from palyra.core.events import PolicyDecided, TapeEvent, ToolProposed
from palyra.core.ids import CallId
from palyra.core.policy.effect import Effect
from palyra.core.tool import Risk, Verdict
from palyra.home import Home
from palyra.journal.engines import sqlite
from palyra.journal.engines.sqlite import SqliteConnection
from palyra.journal.migrate import migrate
from tests.contract.journal.builders import a_run_id, a_run_row, accept, begin, write_down_of
from tests.support import builders as b
from tests.support.builders import AT, RUN
from tests.unit.cli.door import Answer, Cli, Door
from tests.unit.cli.wire import a_run, entry
from tests.unit.policy.asking import write_policy

NO_PUSH = (
    '@id("no-push")\n@reason("Pushing is done by hand.")\n'
    'forbid (principal, action, resource)\nwhen { context.commands.contains("git push") };\n'
)
NOT_BY_HTTP = (
    '@id("not-by-http") @reason("Not from there.") forbid (principal, action, resource == Tool::"shell.run")'
    ' when { context.channel == Channel::"http" };'
)
WRONG = "// mine\npermit (principal, action, resource) when { context.rsk == 1 };\n"


@pytest.fixture
def own(home: Path) -> Path:
    """A policy of the person's own."""
    return write_policy(Home(home), NO_PUSH)


# -- check and show


def test_policies_without_a_problem_are_told_to_be_right(cli: Cli, home: Path) -> None:
    assert cli("policy", "check").out == (f"No problems. {home}/policy has no files, so the built-in policies apply.\n")
    write_policy(Home(home), NO_PUSH)
    assert cli("policy", "check").out == "No problems (1 file, 1 policy).\n"


def test_a_tool_that_is_not_there_is_told_of_and_may_come_later(cli: Cli, home: Path) -> None:
    own = write_policy(
        Home(home), '@id("a") @reason("b")\nforbid (principal, action, resource == Tool::"shell.runs");\n'
    )
    result = cli("policy", "check")
    assert result.code == 0
    assert f"{own}:2:40: Unknown tool 'shell.runs'; did you mean 'shell.run'?" in result.out
    assert len(json.loads(cli("policy", "check", "--json").out)["notes"]) == 1
    write_policy(Home(home), '@id("a") @reason("b")\nforbid (principal, action, resource == Tool::"mcp.x.y");\n')
    assert json.loads(cli("policy", "check", "--json").out)["notes"] == []


@pytest.mark.parametrize(
    ("policy", "column"),
    [
        ('permit (principal, action, resource) when { context.common_commands.contains("ls") };', 53),
        ('permit (principal, action, resource) when { context.commands.contains("ls") };', 53),
        ('permit (principal, action, resource) when { context["commands"].contains("ls") };', 53),
        ('permit (principal, action, resource) when { context.command like "ls*" };', 53),
        ('permit (principal, action, resource) when { context.command == "ls" };', None),
        ('permit (principal, action == Action::"ask", resource) when { context.commands.contains("ls") };', None),
        ('forbid (principal, action, resource) when { context.commands.contains("ls") };', None),
    ],
)
def test_a_policy_that_permits_by_words_of_a_command_is_told_of(
    cli: Cli, home: Path, policy: str, column: int | None
) -> None:
    own = write_policy(Home(home), f'@id("a") @reason("commands")\n{policy}\n')
    result = cli("policy", "check")
    assert result.code == 0
    assert (f"{own}:2:{column}: This permits commands by" in result.out) is (column is not None)


def test_a_call_of_a_tool_that_is_not_there_is_explained_as_a_guess(cli: Cli) -> None:
    assert "did you mean 'files.read'?" in cli("policy", "explain", "--tool", "file.read").err
    assert cli("policy", "explain", "--tool", "files.read").err == ""


def test_a_tool_of_an_mcp_server_has_the_risk_that_the_settings_give_it(cli: Cli, home: Path) -> None:
    def risk(tool: str) -> str:
        return str(json.loads(cli("policy", "explain", "--tool", tool, "--json").out)["risk"])

    home.mkdir(exist_ok=True)
    assert risk("mcp.demo.add") == "high"
    (home / "config.toml").write_text(
        '[mcp.servers.demo]\ncommand = "x"\nrisk = "medium"\nrisks = { drop = "critical" }\n'
    )
    assert (risk("mcp.demo.add"), risk("mcp.demo.drop")) == ("medium", "critical")


def test_every_problem_is_told_with_file_line_and_column(cli: Cli, home: Path, tmp_path: Path) -> None:
    file = tmp_path / "new.cedar"
    file.write_text(WRONG)
    result = cli("policy", "check", str(file))
    assert (result.code, result.err) == (1, "")
    assert result.out.splitlines()[0].startswith(f"{file}:2:53: The policy does not match the schema")
    told = json.loads(cli("policy", "check", str(file), "--json").out)
    assert (told["ok"], told["problems"][0]["line"], told["problems"][0]["column"]) == (False, 2, 53)


def test_the_policies_are_listed_with_where_they_are_from(cli: Cli, own: Path) -> None:
    with own.open("a") as file:
        file.write('@id("grants-hold") forbid (principal, action, resource) when { false };\n')
    lines = cli("policy", "show").out.splitlines()
    assert [line.split()[:3] for line in lines if "shipped" in line and "policy/" not in line] == [
        [name, effect, "shipped"]
        for name, effect in (
            ("changes-ask", "permits"),
            ("no-approval-channel", "forbids"),
            ("reading-is-allowed", "permits"),
            ("secrets-ask", "forbids"),
            ("untrusted-text-asks", "forbids"),
        )
    ]
    replaced = f"grants-hold          forbids  policy/{own.name}:5, replaces the built-in one"
    assert any(replaced in line for line in lines)
    assert f"policy/{own.name}:1" in next(line for line in lines if line.startswith("no-push"))
    told = json.loads(cli("policy", "show", "--json").out)
    assert told["hash"] in lines[-1]
    assert len(told["policies"]) == 7


def test_one_policy_is_shown_in_full(cli: Cli, own: Path) -> None:
    assert cli("policy", "show", "no-push").out == f"// {own}:1\n{NO_PUSH}\n"
    result = cli("policy", "show", "no-such")
    assert result.code == 1
    assert "policy_not_found" in result.err


def test_the_schema_is_printed(cli: Cli) -> None:
    assert "common_commands: Set<String>" in cli("policy", "show", "--schema").out


# -- explain


def test_an_imagined_call_is_explained(cli: Cli, own: Path) -> None:
    shown = cli("policy", "explain", "--tool", "shell.run", "--command", "cd x && git push").out
    assert [line.split(maxsplit=1) for line in shown.splitlines()][:4] == [
        ["verdict", "deny"],
        ["risk", "medium"],
        ["reason", "Pushing is done by hand."],
        ["policies", "no-push"],
    ]
    told = json.loads(
        cli("policy", "explain", "--tool", "shell.run", "--command", "ls", "--label", "web", "--json").out
    )
    assert (told["verdict"], told["policies"]) == ("ask", ["untrusted-text-asks", "changes-ask"])
    alone = cli("policy", "explain", "--tool", "shell.run", "--command", "sudo ls", "--no-approver").out
    assert "no_approval_channel" in alone
    granted = cli("policy", "explain", "--tool", "shell.run", "--command", "ls", "--granted").out
    assert "grants-hold" in granted


def test_arguments_that_do_not_fit_are_refused(cli: Cli) -> None:
    result = cli("policy", "explain", "--tool", "files.read", "--arguments", '{"pth": "x"}')
    assert result.code == 2
    assert "files.read was not called" in result.err
    for wrong in ("[1]", "{"):
        assert cli("policy", "explain", "--tool", "files.read", "--arguments", wrong).code == 2


def test_a_secret_that_goes_along_is_imagined_too(cli: Cli, own: Path) -> None:
    own.write_text(
        '@id("not-mine") @reason("Not in my name.") forbid (principal, action, resource)'
        ' when { context.credentials.contains("github") };'
    )
    asked = ("policy", "explain", "--tool", "http.fetch", "--host", "example.org")
    assert json.loads(cli(*asked, "--json").out)["verdict"] == "ask"
    denied = json.loads(cli(*asked, "--credential", "github", "--json").out)
    assert (denied["verdict"], denied["policies"]) == ("deny", ["not-mine"])


def test_the_channel_of_a_call_is_imagined_too(cli: Cli, own: Path) -> None:
    own.write_text(NOT_BY_HTTP)
    asked = ("policy", "explain", "--tool", "shell.run", "--command", "ls")
    denied = cli(*asked, "--channel", "http").out
    assert "Not from there." in denied
    for other in ((), ("--channel", "grpc"), ("--channel", "grpc", "--no-approver")):
        assert json.loads(cli(*asked, *other, "--json").out)["verdict"] == "ask"


def test_a_policy_that_names_a_person_holds_for_that_one(cli: Cli, own: Path) -> None:
    own.write_text('@id("not-mine") forbid (principal in Principal::"user:owner", action, resource);')
    asked = ("policy", "explain", "--tool", "shell.run", "--command", "ls", "--json")
    assert json.loads(cli(*asked).out)["verdict"] == "deny"
    assert json.loads(cli(*asked, "--principal", "user:ana").out)["verdict"] == "ask"


def test_either_a_run_or_a_tool_is_explained(cli: Cli) -> None:
    assert cli("policy", "explain").code == 2
    assert cli("policy", "explain", "last", "--tool", "files.read").code == 2


def a_past() -> list[TapeEvent]:
    push = Effect(risk=Risk.MEDIUM, summary="run git push", command="git push")
    return [
        b.an_accepted(origin="http"),
        ToolProposed(at=AT, turn=1, call_id=CallId("c1"), tool="shell.run", arguments={"command": "git push"}),
        b.a_proposal(1, "c2", tool="time.now"),
        PolicyDecided(
            at=AT,
            labels=("owner",),
            call_id=CallId("c1"),
            verdict=Verdict.ASK,
            risk=Risk.MEDIUM,
            reason="",
            policies=("changes-ask",),
            effect=push,
            approver_reachable=True,
        ),
        b.a_verdict("c2"),
    ]


@pytest.mark.usefixtures("inhabited")
def test_a_past_call_is_judged_again(cli: Cli, door: Door) -> None:
    page = ",".join(entry(seq, event) for seq, event in enumerate(a_past(), 1))
    door.says("GET", f"/runs/{RUN}", {"run": a_run()})
    door.says("GET", f"/runs/{RUN}/tape", Answer(f'{{"entries":[{page}],"next_after_seq":null}}'.encode()))
    shown = cli("policy", "explain", RUN).out
    assert [line.split()[1] for line in shown.splitlines() if line.startswith(("call", "verdict", "recorded"))] == [
        "c1:",
        "ask",
        "ask",
        "c2:",
        "allow",
        "allow",
    ]
    told = json.loads(cli("policy", "explain", RUN, "c1", "--json").out)["calls"]
    assert [(call["call_id"], call["summary"], call["was"], call["verdict"]) for call in told] == [
        ("c1", "run git push", "ask", "ask")
    ]
    assert told[0]["channels"] == ["http"]
    assert ["channel", "http"] in [line.split() for line in shown.splitlines()]
    missing = cli("policy", "explain", RUN, "c9")
    assert missing.code == 1
    assert "policy_decision_not_found" in missing.err


# -- test


CASES = """
[[case]]
name = "pushing is by hand"
tool = "shell.run"
command = "git push"
expect = "deny"
policy = "no-push"

[[case]]
tool = "shell.run"
arguments = { command = "ls" }
label = "web"
approver_reachable = false
expect = "ask"

[[case]]
tool = "files.read"
channel = "http"
expect = "allow"
"""


def test_cases_that_hold_are_told(cli: Cli, own: Path, tmp_path: Path) -> None:
    file = tmp_path / "cases.toml"
    file.write_text(CASES)
    result = cli("policy", "test", str(file))
    assert (result.code, result.out) == (0, "3 cases passed.\n")


def test_cases_that_do_not_hold_are_told_with_the_difference(cli: Cli, home: Path, tmp_path: Path) -> None:
    file = tmp_path / "cases.toml"
    file.write_text(CASES + '[[case]]\nname = "by another"\ntool = "time.now"\nexpect = "allow"\npolicy = "x"\n')
    result = cli("policy", "test", str(file))
    assert result.code == 1
    assert "pushing is by hand: expected deny, got ask." in result.out
    assert "by another: expected policy x to contribute, but it did not." in result.out
    assert result.out.endswith("2 of 4 cases failed.\n")
    told = json.loads(cli("policy", "test", str(file), "--json").out)
    assert [(wrong["case"], wrong["verdict"]) for wrong in told["wrong"]] == [
        ("pushing is by hand", "ask"),
        ("by another", "allow"),
    ]


def test_cases_may_be_json_and_policies_from_elsewhere(cli: Cli, home: Path, tmp_path: Path) -> None:
    cases, policies = tmp_path / "cases.json", tmp_path / "new.cedar"
    cases.write_text(json.dumps({"case": [{"tool": "shell.run", "command": "git push", "expect": "deny"}]}))
    policies.write_text(NO_PUSH)
    assert cli("policy", "test", str(cases)).code == 1
    assert cli("policy", "test", str(cases), "--policy", str(policies)).code == 0


@pytest.mark.parametrize(
    "text",
    [
        "[[case]]\ntool = 'x'\n",
        "[[case]]\ntool = 'x'\nexpect = 'maybe'\n",
        "[[case]]\ntool = 'x'\nexpect = 'ask'\nlable = 'web'\n",
        "[[case]]\ntool = 'x'\nexpect = 'ask'\nlabel = 'wbe'\n",
        "[[case\n",
    ],
)
def test_a_file_of_cases_that_is_wrong_is_refused(cli: Cli, home: Path, tmp_path: Path, text: str) -> None:
    file = tmp_path / "cases.toml"
    file.write_text(text)
    result = cli("policy", "test", str(file))
    assert result.code == 2
    assert "policy_cases_invalid" in result.err


# -- simulate


@pytest.fixture
def journal(home: Path) -> Home:
    """A home whose journal has seen a run with two calls."""
    home.mkdir()
    made = Home(home)
    raw = sqlite.open_for_writing(made.journal)
    with raw:
        conn = SqliteConnection(raw)
        migrate(conn, now_ms=0)
        session_id = begin(conn)
        accept(conn, a_run_row(1, session_id))
        write_down_of(conn, session_id, a_run_id(1), *a_past())
        conn.flush()
    raw.close()
    return made


def test_recorded_calls_are_decided_again_and_what_changes_is_listed(cli: Cli, journal: Home, tmp_path: Path) -> None:
    new = tmp_path / "new.cedar"
    new.write_text(NO_PUSH)
    assert "2 calls in" in cli("policy", "simulate").out
    assert cli("policy", "simulate").out.endswith("0 different decisions.\n")
    lines = cli("policy", "simulate", str(new)).out.splitlines()
    assert lines[1].split()[:4] == [a_run_id(1), "c1", "ask", "deny"]
    assert lines[-1].endswith("1 different decision.")
    told = json.loads(cli("policy", "simulate", str(new), "--json").out)
    assert (told["calls"], told["verdicts"]) == (2, {"deny": 1, "allow": 1})
    assert [(flip["call_id"], flip["was"], flip["verdict"], flip["policies"]) for flip in told["flips"]] == [
        ("c1", "ask", "deny", ["no-push"])
    ]


def test_recorded_calls_are_decided_again_by_the_channel_of_then(cli: Cli, journal: Home, tmp_path: Path) -> None:
    new = tmp_path / "new.cedar"
    new.write_text(NOT_BY_HTTP)
    (flip,) = json.loads(cli("policy", "simulate", str(new), "--json").out)["flips"]
    assert (flip["call_id"], flip["verdict"], flip["channels"]) == ("c1", "deny", ["http"])
    new.write_text(NOT_BY_HTTP.replace('"http"', '"grpc"'))
    assert json.loads(cli("policy", "simulate", str(new), "--json").out)["flips"] == []


def test_only_some_calls_are_decided_again(cli: Cli, journal: Home) -> None:
    assert json.loads(cli("policy", "simulate", "--limit", "1", "--json").out)["calls"] == 1
    assert json.loads(cli("policy", "simulate", "--since", "2100-01-01", "--json").out)["calls"] == 0


def test_a_wrong_policy_is_not_simulated(cli: Cli, journal: Home, tmp_path: Path) -> None:
    new = tmp_path / "new.cedar"
    new.write_text(WRONG)
    result = cli("policy", "simulate", str(new))
    assert result.code == 2
    assert f"{new}:2:53" in result.err
