"""Providers of models by command: added, proved, listed, tried, chosen, explained, removed; with a real daemon and a
server that plays the provider."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from palyra.home import Home
from palyra.journal.snapshot import open_snapshot
from palyra.settings import Settings
from tests.e2e.conftest import NewDaemon
from tests.e2e.test_cli_terminal import CTRL_C, ENTER, terminal
from tests.e2e.test_documents import commands, type_in
from tests.support.command import command
from tests.support.daemon import Daemon, until
from tests.support.model_server import answer, breaks_off, stalls
from tests.support.provider_thread import SAYS, Played, played, said

Json = Any

KEY = "sk-test-3f9a77c0d1e24b6c"
COMMENTED = """\
# What I run at home.
[limits]
tool_calls = 40  # more than enough

[model]
# The helper, until I choose.
provider = "embedded"

[approvals]
inbox = true
"""


@pytest.fixture
def daemon(new_sqlite_daemon: NewDaemon) -> Daemon:
    """A daemon whose models are those that the settings' file names."""
    made = new_sqlite_daemon(model_provider=None, model_script=None)
    made.home.path.mkdir(mode=0o700, parents=True)
    made.home.config.write_text(COMMENTED)
    made.home.config.chmod(0o600)
    return made.start()


@pytest.fixture
def provider() -> Iterator[Played]:
    with played(key=KEY) as made:
        yield made


def run(daemon: Daemon, *args: str, code: int = 0, stdin: str = "", **variables: str) -> str:
    """Run a command of ours and return what it says on both streams."""
    done: subprocess.CompletedProcess[str] = command(
        daemon.home.path, "providers", *args, stdin=stdin, **{"MY_KEY": KEY, **variables}
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if "--json" in args and code == 0 else done.stdout + done.stderr


def added(daemon: Daemon, name: str, provider: Played, *args: str) -> Json:
    given = ("--base-url", provider.url, "--key-env", "MY_KEY", "--model", "tiny", *args)
    return json.loads(run(daemon, "add", name, *given, "--json"))


def listed(daemon: Daemon) -> dict[str, Json]:
    return {one["name"]: one for one in json.loads(run(daemon, "list", "--json"))["providers"]}


def secrets(daemon: Daemon) -> list[str]:
    return [one["name"] for one in daemon.get("/secrets")["secrets"]]


def everything_written(home: Home) -> bytes:
    return b"".join(path.read_bytes() for path in home.path.rglob("*") if path.is_file())


@pytest.mark.parametrize("dialect", ["openai", "responses", "anthropic", "gemini"])
def test_a_provider_is_proved_with_one_answer_and_its_key_stands_in_the_vault_alone(
    daemon: Daemon, provider: Played, *, dialect: str
) -> None:
    done = added(daemon, "mine", provider, "--dialect", dialect)

    assert (done["provider"], done["model"], done["key"], done["default"]) == ("mine", "tiny", "vault:mine", False)
    trial = done["test"]
    assert (trial["ok"], trial["answer"], trial["model"]) == (True, SAYS, "mine/tiny")
    assert (trial["usage"]["input_tokens"], trial["usage"]["output_tokens"]) == (11, 4)
    assert 0 <= trial["first_ms"] <= trial["total_ms"]
    one = listed(daemon)["mine"]
    assert (one["dialect"], one["where"], one["keys"], one["lost"]) == (dialect, provider.url, ["vault:mine"], [])
    assert done["tools"] == {"mode": "native", "tested": True, "reason": "it calls tools natively"}
    assert len(provider.questions) == 3, "one for the answer, two for the tools"
    assert KEY.encode() not in everything_written(daemon.home)
    assert KEY not in daemon.output()


def test_a_model_that_is_made_to_call_tools_lists_and_answers_as_well(daemon: Daemon, provider: Played) -> None:
    added(daemon, "mine", provider, "--tools", "schema")

    assert "large" in run(daemon, "models", "mine")
    assert f"mine/tiny says: {SAYS}" in run(daemon, "test", "mine")


def test_comments_and_the_mode_of_the_settings_stay(daemon: Daemon, provider: Played) -> None:
    added(daemon, "mine", provider, "--default")

    text = daemon.home.config.read_text()
    assert text.startswith(COMMENTED.replace('"embedded"', '"mine"').partition("[approvals]")[0])
    assert text.endswith("[approvals]\ninbox = true\n")
    assert daemon.home.config.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in daemon.home.path.glob("*config*")) == ["config.toml"]


def test_a_provider_that_is_made_the_default_answers_without_a_restart(daemon: Daemon, provider: Played) -> None:
    added(daemon, "mine", provider, "--default")

    sent = daemon.send("Who are you?")

    assert daemon.finished(sent["run_id"])["status"] == "done"
    (turn,) = [line.event for line in daemon.tape(f"/runs/{sent['run_id']}") if line.kind == "model_turn_started"]
    assert (turn["provider"], turn["model"]) == ("mine", "tiny")
    run(daemon, "default", "embedded")
    sent = daemon.send("what time is it?")
    daemon.finished(sent["run_id"])
    (turn, *_) = [line.event for line in daemon.tape(f"/runs/{sent['run_id']}") if line.kind == "model_turn_started"]
    assert turn["provider"] == "embedded"


def test_a_trial_is_a_run_in_the_ledger_and_out_of_the_way(daemon: Daemon, provider: Played) -> None:
    trial = added(daemon, "mine", provider)["test"]

    assert daemon.run(trial["run_id"])["status"] == "done"
    assert daemon.sessions() == []
    with open_snapshot(daemon.home, Settings()) as conn:
        rows = conn.fetch("SELECT cause, task, input_tokens, output_tokens FROM usage WHERE state = 'settled'")
    hello, call = ("test", "auxiliary", 11, 4), ("test", "auxiliary", 60, 9)
    assert sorted(tuple(row) for row in rows) == [hello, hello, call]


def test_a_price_of_the_owner_tells_what_a_trial_costs(daemon: Daemon, provider: Played) -> None:
    daemon.home.prices.write_text('[models."mine/tiny"]\ninput = 1000\noutput = 500\n')

    assert "cost: 0.01" in run(
        daemon, "add", "mine", "--base-url", provider.url, "--key-env", "MY_KEY", "--model", "tiny"
    )


def test_a_budget_that_is_used_up_allows_no_trial(daemon: Daemon, provider: Played) -> None:
    added(daemon, "mine", provider)
    daemon.home.config.write_text(daemon.home.config.read_text() + "[spending.budgets.small]\ntokens = 20\n")
    command(daemon.home.path, "config", "reload")
    before = len(provider.questions)

    assert "The budget 'small' allows 20 tokens per day" in run(daemon, "test", "mine", code=1)
    assert len(provider.questions) == before


def test_a_trial_does_not_wait_for_a_word_on_a_budget(daemon: Daemon, provider: Played) -> None:
    added(daemon, "mine", provider)
    with daemon.home.config.open("a") as file:
        file.write('[spending.budgets.small]\ntokens = 20\naction = "ask"\n')
    command(daemon.home.path, "config", "reload")

    trial = json.loads(command(daemon.home.path, "providers", "test", "mine", "--json").stdout)

    assert not trial["ok"]
    assert "A budget requires approval" in trial["reason"]
    assert daemon.run(trial["run_id"])["status"] == "cancelled"


def test_a_trial_that_hangs_is_cancelled_by_ctrl_c(daemon: Daemon, provider: Played) -> None:
    provider.instead = stalls()
    args = ("providers", "add", "mine", "--base-url", provider.url, "--dialect", "openai", "--model", "tiny")
    with terminal(daemon.home.path, *args) as screen:
        screen.wait_for("API key for mine")
        screen.type(f"{KEY}{ENTER}")
        until(lambda: provider.questions)
        screen.type(CTRL_C)
        screen.wait_for("The test was cancelled")
        assert screen.end() == 1
    assert daemon.home.config.read_text() == COMMENTED
    assert daemon.runs()[0]["status"] == "cancelled"


@pytest.mark.parametrize("how", ["--key-stdin", "--key-file"])
def test_a_key_may_come_from_a_file_or_from_stdin(
    daemon: Daemon, provider: Played, tmp_path: Path, *, how: str
) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    given = ("--key-stdin",) if how == "--key-stdin" else ("--key-file", str(file))

    run(daemon, "add", "mine", "--base-url", provider.url, "--model", "tiny", *given, stdin=f"{KEY}\n")

    assert listed(daemon)["mine"]["keys"] == ["vault:mine"]


def test_a_key_may_stay_where_it_is(daemon: Daemon, provider: Played, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY)
    at = f"file:{file}"

    run(daemon, "add", "mine", "--base-url", provider.url, "--model", "tiny", "--key-ref", at)

    assert listed(daemon)["mine"]["keys"] == [at]
    assert secrets(daemon) == []
    file.unlink()
    one = listed(daemon)["mine"]
    assert [lost["reference"] for lost in one["lost"]] == [at]
    assert "key missing" in run(daemon, "list")
    doctor = command(daemon.home.path, "doctor")
    assert doctor.returncode == 1
    assert f"{at} cannot be read" in doctor.stdout


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("mine", "--key-ref", KEY), "secret_in_arguments"),
        (("mine", "--key-env", KEY), "provider_key_not_found"),
        (("mine", "--key-env", "NOT_SET"), "provider_key_not_found"),
        (("mine", "--key-file", "/nowhere"), "provider_key_not_found"),
        (("mine", "--key-stdin"), "provider_key_not_found"),
        (("anthropic",), "provider_key_required"),
        (("nobody-knows",), "provider_not_found"),
        (("sk-ant-api03-" + "x1Y2" * 20, "--dialect", "anthropic"), "provider_invalid"),
        (("mine2", "--base-url", "ftp://there/v1"), "provider_invalid"),
        ((), "provider_required"),
        (("mine", "--key-env", "MY_KEY", "--key-stdin"), "usage"),
    ],
)
def test_what_can_not_be_added_is_refused_before_anything_is_stored(
    daemon: Daemon, *, args: tuple[str, ...], code: str
) -> None:
    where = ("--base-url", "http://127.0.0.1:1/v1") if args[:1] == ("mine",) else ()

    told = run(daemon, "add", *args, *where, code=1 if code == "provider_not_found" else 2)

    assert f"[{code}]" in told
    assert not any(key in told for key in (KEY, "x1Y2x1Y2"))
    assert daemon.home.config.read_text() == COMMENTED
    assert secrets(daemon) == []


def test_a_variable_with_a_key_is_pointed_at_and_not_taken_unasked(daemon: Daemon) -> None:
    told = run(daemon, "add", "anthropic", code=2, ANTHROPIC_API_KEY=KEY)

    assert "ANTHROPIC_API_KEY is set: use --key-env ANTHROPIC_API_KEY" in told
    assert secrets(daemon) == []


@pytest.mark.parametrize("model", [("--model", "tiny"), ()])
def test_a_wrong_key_leaves_nothing_behind(daemon: Daemon, provider: Played, *, model: tuple[str, ...]) -> None:
    wrong = "sk-wrong-8a1b2c3d4e5f"

    told = run(daemon, "add", "mine", "--base-url", provider.url, "--key-env", "OTHER", *model, code=1, OTHER=wrong)

    assert "mine rejected the key at vault:mine" in told
    assert "Nothing was stored" in told
    assert wrong not in told
    assert daemon.home.config.read_text() == COMMENTED
    assert secrets(daemon) == []
    assert "mine" not in listed(daemon)
    assert wrong.encode() not in everything_written(daemon.home)


def test_a_server_that_is_not_there_is_kept_by_force_only(daemon: Daemon) -> None:
    given = ("--base-url", "http://127.0.0.1:1/v1", "--model", "tiny")

    assert "mine cannot be reached for tiny" in run(daemon, "add", "mine", *given, code=1)
    assert "mine" not in listed(daemon)
    assert "No answer from mine/tiny" in run(daemon, "add", "mine", *given, "--force")
    assert listed(daemon)["mine"]["where"] == "http://127.0.0.1:1/v1"
    assert "cannot be reached" in run(daemon, "test", "mine", code=1)
    assert not json.loads(command(daemon.home.path, "providers", "test", "mine", "--json").stdout)["ok"]


def test_models_are_listed_and_the_only_one_is_taken(daemon: Daemon, provider: Played) -> None:
    given = ("add", "mine", "--base-url", provider.url, "--key-env", "MY_KEY")

    told = run(daemon, *given, code=2)
    assert "Name one with --model: large, tiny, tiny-2" in told
    assert "mine" not in listed(daemon)
    provider.models = ("only",)
    run(daemon, *given)

    assert listed(daemon)["mine"]["model"] == "only"
    provider.models = ("only", "and-another")
    assert sorted(run(daemon, "models", "mine").split()) == ["and-another", "only"]
    assert "mine/and-another says" in run(daemon, "test", "mine/and-another")
    assert "[provider_not_found]" in run(daemon, "models", "theirs", code=1)


def test_a_server_on_this_machine_needs_no_key_and_is_found_by_its_variable(daemon: Daemon) -> None:
    with played(models=("llama",)) as ollama:
        host = ollama.url.removeprefix("http://").removesuffix("/v1")

        run(daemon, "add", "ollama", "--default", OLLAMA_HOST=host)

        one = listed(daemon)["ollama"]
        assert (one["where"], one["model"], one["keys"], one["default"]) == (ollama.url, "llama", [], True)
        assert "authorization" not in ollama.questions[0].headers


def test_a_name_is_taken_once_and_may_be_replaced(daemon: Daemon, provider: Played) -> None:
    added(daemon, "mine", provider)
    text = daemon.home.config.read_text().replace('dialect = "openai"', 'dialect = "openai"  # mine\nmax_attempts = 2')
    daemon.home.config.write_text(text)

    assert "[provider_exists]" in run(daemon, "add", "mine", "--base-url", provider.url, "--model", "tiny", code=1)
    done = added(daemon, "mine", provider, "--replace", "--model", "large")

    assert (done["model"], done["key"]) == ("large", "vault:mine-2")
    assert 'dialect = "openai"  # mine\nmax_attempts = 2' in daemon.home.config.read_text()
    with played(key="another") as other:
        run(daemon, "add", "mine", "--replace", "--base-url", other.url, "--key-env", "MY_KEY", "--model", "x", code=1)
    assert listed(daemon)["mine"]["where"] == provider.url
    assert secrets(daemon) == ["mine", "mine-2"]


def test_what_answers_is_not_removed_unless_another_does(daemon: Daemon, provider: Played) -> None:
    added(daemon, "mine", provider, "--default")
    added(daemon, "spare", provider)
    text = daemon.home.config.read_text()
    daemon.home.config.write_text(text.replace('provider = "mine"', 'provider = "mine"\nfallback = ["spare/large"]'))
    command(daemon.home.path, "config", "reload")
    assert listed(daemon)["spare"]["fallback"] == [1]

    assert "mine is the default provider" in run(daemon, "remove", "mine", code=1)
    told = run(daemon, "remove", "mine", "--default", "spare")
    assert "Delete it with `palyra secrets delete mine`" in told
    run(daemon, "default", "embedded")
    run(daemon, "remove", "spare", "--delete-secret")

    assert list(listed(daemon)) == ["embedded"]
    assert secrets(daemon) == ["mine"]
    assert "fallback = []" in daemon.home.config.read_text()
    assert "[provider_not_found]" in run(daemon, "remove", "spare", code=1)
    assert "[provider_not_found]" in run(daemon, "default", "spare", code=1)


def test_a_person_is_asked_whether_the_key_goes_too(daemon: Daemon, provider: Played) -> None:
    added(daemon, "mine", provider)

    with terminal(daemon.home.path, "providers", "remove", "mine") as screen:
        screen.wait_for("Also delete the secret mine from the vault [y/N]")
        screen.type(f"y{ENTER}")
        screen.wait_for("Deleted secret mine.")
        assert screen.end() == 0

    assert secrets(daemon) == []
    assert daemon.home.config.read_text().rstrip() == COMMENTED.rstrip()


def test_a_key_that_another_provider_needs_too_stays(daemon: Daemon, provider: Played) -> None:
    added(daemon, "mine", provider)
    given = ("--base-url", provider.url, "--model", "tiny", "--key-ref", "vault:mine")
    run(daemon, "add", "too", *given)

    run(daemon, "remove", "mine", "--delete-secret")

    assert secrets(daemon) == ["mine"]
    assert f"too/tiny says: {SAYS}" in run(daemon, "test", "too")


def test_what_a_rule_names_is_not_removed(daemon: Daemon, provider: Played) -> None:
    added(daemon, "mine", provider)
    with daemon.home.config.open("a") as file:
        file.write('[[model.rules]]\nmodels = ["mine"]\ntask = "background"\n')
    before = daemon.home.config.read_text()

    assert "Rule 1 in [[model.rules]] names mine" in run(daemon, "remove", "mine", code=1)
    assert daemon.home.config.read_text() == before


def test_settings_that_do_not_load_are_not_touched(daemon: Daemon, provider: Played) -> None:
    broken = COMMENTED + "[model]\n"
    daemon.home.config.write_text(broken)

    told = run(daemon, "add", "mine", "--base-url", provider.url, "--key-env", "MY_KEY", "--model", "tiny", code=2)

    assert "It must be TOML" in told
    assert daemon.home.config.read_text() == broken
    assert secrets(daemon) == []


def test_a_failover_is_explained_from_the_tape(daemon: Daemon, provider: Played) -> None:
    added(daemon, "first", provider, "--default")
    with played(key=KEY) as second:
        added(daemon, "second", second)
        text = daemon.home.config.read_text()
        text = text.replace('provider = "first"', 'provider = "first"\nfallback = ["second"]')
        text += '[[model.rules]]\nmodels = ["second/large"]\ncomplexity = "simple"\n'
        daemon.home.config.write_text(text)
        command(daemon.home.path, "config", "reload")
        provider.instead = answer(401, {"error": {"message": "no longer", "type": "auth"}})

        sent = daemon.send("Hello?")
        assert daemon.finished(sent["run_id"])["status"] == "done"

    told = json.loads(run(daemon, "explain", sent["run_id"], "--json"))
    first, then = told["turns"]
    assert (first["model"], first["outcome"], first["failure"]) == ("first/tiny", "discarded", "auth")
    assert first["plan"]["recommended"] == "second/large"
    assert (then["model"], then["outcome"], then["plan"]["attempt"]) == ("second/tiny", "answered", 2)
    assert [one["passed_over"] for one in then["plan"]["candidates"]] == ["its key was refused", ""]
    shown = run(daemon, "explain")
    assert "turn 1: first/tiny, discarded (auth)" in shown
    assert "would choose second/large (suggest)" in shown
    assert "its key was refused" in shown
    assert "turn 2: second/tiny, answered" in shown


def test_a_run_that_nobody_answers_is_explained(daemon: Daemon, provider: Played) -> None:
    added(daemon, "mine", provider, "--default")
    provider.instead = breaks_off('data: {"id": "c1"')
    text = daemon.home.config.read_text()
    daemon.home.config.write_text(text.replace('model = "tiny"', 'model = "tiny"\nmax_attempts = 1'))
    command(daemon.home.path, "config", "reload")

    sent = daemon.send("Hello?")
    assert daemon.finished(sent["run_id"])["status"] == "failed"

    told = json.loads(run(daemon, "explain", "last", "--json"))
    assert [turn["outcome"] for turn in told["turns"]] == ["discarded"]
    assert "closed the stream" in told["failed"]


def test_the_door_is_for_who_administers(daemon: Daemon) -> None:
    owner = {"authorization": f"Bearer {daemon.token}"}
    made = httpx.post(
        f"{daemon.address}/admin/v1/tokens", headers=owner, json={"principal": "user:ana", "name": "ana"}, verify=False
    ).json()
    hers = {"authorization": f"Bearer {made['secret']}"}

    for method, path in (("GET", ""), ("GET", "/embedded/models"), ("POST", "/embedded/test")):
        asked = httpx.request(method, f"{daemon.address}/admin/v1/providers{path}", headers=hers, json={}, verify=False)
        assert asked.status_code == 403, path


def test_the_conversation_offers_what_is_there_and_proves_the_choice(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    with played() as ollama:
        monkeypatch.setenv("OLLAMA_HOST", ollama.url.removeprefix("http://").removesuffix("/v1"))
        with terminal(daemon.home.path, "providers", "add") as screen:
            screen.wait_for("running at")
            screen.wait_for("Provider [")
            screen.type(f"ollama{ENTER}")
            screen.wait_for("Model: ")
            screen.type(f"nothing{ENTER}")
            screen.wait_for("no model name contains")
            screen.wait_for("Model: ")
            screen.type(f"lar{ENTER}")
            screen.wait_for(f"ollama/large says: {SAYS}")
            screen.wait_for("tokens in, 4 out")
            screen.wait_for("the default provider")
            screen.type(ENTER)
            screen.wait_for("Try it with `palyra chat`")
            assert screen.end() == 0
    one = listed(daemon)["ollama"]
    assert (one["model"], one["default"]) == ("large", True)


def test_a_typed_key_is_not_shown_and_a_second_thought_leaves_nothing_behind(daemon: Daemon, provider: Played) -> None:
    args = ("providers", "add", "work", "--preset", "anthropic", "--base-url", provider.url)
    with terminal(daemon.home.path, *args) as screen:
        screen.wait_for("API key for Anthropic")
        screen.type(f"{KEY}{ENTER}")
        screen.wait_for("Model: ")
        assert screen.interrupt() == 130
        assert KEY not in screen.raw
    assert daemon.home.config.read_text() == COMMENTED
    assert secrets(daemon) == []
    assert list(listed(daemon)) == ["embedded"]


def test_a_daemon_is_started_for_the_first_provider(tmp_path: Path, provider: Played) -> None:
    home = tmp_path / "home"
    given = ("--base-url", provider.url, "--key-env", "MY_KEY", "--model", "tiny", "--default")
    ports = {"PALYRA_HTTP_PORT": "0", "PALYRA_GRPC_PORT": "0"}
    try:
        done = command(home, "providers", "add", "mine", *given, MY_KEY=KEY, **ports)
        assert done.returncode == 0, done.stderr
        assert "started the daemon" in done.stderr
        assert command(home, "run", "-m", "Hello").stdout.strip() == SAYS
        assert said(provider.questions[-1]) == said(provider.questions[0])
    finally:
        command(home, "down")


def test_the_guide_works_as_written(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    found = commands("docs/guides/providers.md")
    with played(models=("llama3.2", "another")) as ollama:
        monkeypatch.setenv("OLLAMA_HOST", ollama.url.removeprefix("http://").removesuffix("/v1"))
        for one in found:
            done = type_in(one, daemon.home.path)
            assert done.returncode == 0, f"{one}\n{done.stdout}\n{done.stderr}"
    assert len(found) > 5
