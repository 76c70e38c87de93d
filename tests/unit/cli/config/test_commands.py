"""`palyra config`: what is wrong, what is set, where it leads."""

import json
import os
from pathlib import Path

import pytest

from palyra.config import effective, settings_hash
from palyra.home import Home
from palyra.settings import Settings
from tests.unit.cli.door import Cli, Door

SECRET = "s3cret"


@pytest.fixture
def file(home: Path) -> Path:
    """The settings of the home, which is there."""
    home.mkdir()
    return home / "config.toml"


# -- check


def test_settings_without_a_problem_are_told_to_be_right(cli: Cli, home: Path) -> None:
    result = cli("config", "check")
    assert (result.code, result.err) == (0, "")
    assert result.out == f"No problems. {home}/config.toml does not exist, so all settings have their default values.\n"


def test_every_problem_is_told_with_its_place_and_a_remedy(cli: Cli, file: Path) -> None:
    file.write_text("[http]\nprot = 1\n[workspace]\nroot = '/not/there'\n[limits]\ntool_timeout_ms = -1\n")
    result = cli("config", "check")
    assert (result.code, result.err) == (1, "")
    assert result.out.splitlines() == [
        f"{file}: unknown key 'prot' in section [http].",
        "    Did you mean 'port'?",
        f"{file}: limits.tool_timeout_ms is not valid: a limit cannot be negative.",
        "    Fix or remove it; the default is 30000.",
        f"{file}: workspace.root is /not/there, which is not a folder.",
        "    Create it, or set another folder.",
        "",
        "3 problems.",
    ]


@pytest.mark.parametrize("setting", ["[workspace]\nroot", "[model]\nscript", "[http]\ntls_key"])
def test_the_folder_of_a_person_who_does_not_exist_is_a_place_that_is_not_there(
    cli: Cli, file: Path, setting: str
) -> None:
    file.write_text(f"{setting} = '~nobody-of-this-name/x'\n")
    result = cli("config", "check")
    assert (result.code, result.err) == (1, "")
    assert " is ~nobody-of-this-name/x, which " in result.out


def test_programs_get_the_problems_as_json(cli: Cli, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("[model]\nprovider = 'scripted'\n")
    monkeypatch.setenv("PALYRA_MODLE_SCRIPT", "x")
    result = cli("config", "check", "--json")
    assert result.code == 1
    said = json.loads(result.out)
    assert (said["ok"], said["file"]) == (False, str(file))
    assert [(problem["where"], problem["key"]) for problem in said["problems"]] == [
        (str(file), "model.script"),
        ("PALYRA_MODLE_SCRIPT", None),
    ]
    assert all(problem["what"] and problem["remedy"] for problem in said["problems"])


@pytest.mark.parametrize("key", ["http.tls_certificate", "http.tls_key", "model.script"])
def test_a_file_that_is_named_must_be_there(cli: Cli, file: Path, key: str) -> None:
    section, _, name = key.partition(".")
    file.write_text(f"[{section}]\n{name} = '/not/there'\n")
    assert f"{key} is /not/there, which cannot be read." in cli("config", "check").out


def test_whether_a_reference_leads_to_a_secret_is_told_and_not_to_which(
    cli: Cli, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("[journal]\ndatabase_url = 'env:DATABASE'\n")
    lost = cli("config", "check")
    assert lost.code == 1
    assert "journal.database_url is not valid: env:DATABASE is not set or does not exist." in lost.out
    assert json.loads(cli("config", "check", "--json").out)["references"] == {"journal.database_url": False}

    monkeypatch.setenv("DATABASE", SECRET)
    found = cli("config", "check")
    assert found.code == 0
    assert "journal.database_url: found a secret at env:DATABASE.\n" in found.out
    as_json = cli("config", "check", "--json").out
    assert json.loads(as_json)["references"] == {"journal.database_url": True}
    assert SECRET not in found.out + as_json


@pytest.mark.parametrize("reference", ["env:NOT_THERE", "file:/not/there"])
def test_a_reference_is_shown_whether_it_leads_anywhere_or_not(cli: Cli, file: Path, reference: str) -> None:
    file.write_text(f"[journal]\ndatabase_url = '{reference}'\n")
    assert reference in cli("config", "show", "--effective").out


# -- show


def test_what_is_set_is_shown_with_where_it_is_from(cli: Cli, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("[http]\nport = 8000\n")
    monkeypatch.setenv("PALYRA_RUNS_MAX_CONCURRENT", "3")
    lines = [line.split() for line in cli("config", "show").out.splitlines()]
    assert lines == [
        ["KEY", "VALUE", "SOURCE"],
        ["http.port", "8000", str(file)],
        ["runs.max_concurrent", "3", "PALYRA_RUNS_MAX_CONCURRENT"],
    ]


def test_where_nothing_is_set_it_says_how_to_see_the_defaults(cli: Cli) -> None:
    assert "config show --effective" in cli("config", "show").out


def test_all_that_is_in_force_is_shown_on_request(cli: Cli, file: Path) -> None:
    file.write_text("[http]\nport = 8000\n")
    shown = json.loads(cli("config", "show", "--effective", "--json").out)
    sources = {value["key"]: value["source"] for value in shown["values"]}
    assert set(sources) == set(effective(Settings()))
    assert [key for key, source in sources.items() if source != "default"] == ["http.port"]
    assert shown["hash"] != settings_hash(Settings())


@pytest.mark.parametrize("flags", [(), ("--json",), ("--effective",), ("--effective", "--json")])
@pytest.mark.parametrize("value", ["env:DATABASE", f"postgresql://palyra:{SECRET}@db/palyra"])
def test_no_secret_is_shown(
    cli: Cli, file: Path, monkeypatch: pytest.MonkeyPatch, value: str, flags: tuple[str, ...]
) -> None:
    monkeypatch.setenv("DATABASE", f"postgresql://palyra:{SECRET}@db/palyra")
    file.write_text(f"[journal]\ndatabase_url = '{value}'\n")
    result = cli("config", "show", *flags)
    assert value.replace(SECRET, "***") in result.out
    assert SECRET not in result.out + result.err


def test_wrong_settings_are_not_shown_in_part(cli: Cli, file: Path) -> None:
    file.write_text("[http]\nprot = 1\n")
    result = cli("config", "show")
    assert (result.code, result.out) == (2, "")
    assert result.err.endswith("Did you mean 'port'? [settings_invalid]\n")


# -- schema


def test_the_schema_knows_every_key_and_refuses_others(cli: Cli) -> None:
    schema = json.loads(cli("config", "schema").out)
    assert schema["$schema"].startswith("https://json-schema.org/")
    tables = {name: part for name, part in schema["$defs"].items() if "properties" in part}
    parts = {name: part["properties"] for name, part in tables.items()}
    known = {
        f"{section}.{name}"
        for section, part in parts["Settings"].items()
        for name in parts[part["$ref"].rpartition("/")[2]]
    }
    assert known == set(effective(Settings()))
    assert all(part["additionalProperties"] is False for part in tables.values())


# -- target


def test_the_target_is_told_and_why_it_is_that_one(cli: Cli, inhabited: Home, door: Door) -> None:
    shown = json.loads(cli("config", "target", "--json").out)
    assert shown == {
        "home": str(inhabited.path),
        "because": [f"PALYRA_HOME is {inhabited.path}"],
        "running": True,
        "address": door.address,
        "grpc": door.grpc,
        "pid": os.getpid(),
        "version": "0.1.0",
        "token_file": str(inhabited.token),
        "has_token": True,
    }
    told = cli("config", "target").out
    assert door.address in told
    assert door.grpc in told


def test_the_target_of_a_profile_is_another_one(cli: Cli, inhabited: Home) -> None:
    result = cli("config", "target", "--profile", "work")
    assert result.code == 0
    assert f"{inhabited.path}-work" in result.out
    assert f"PALYRA_HOME is {inhabited.path}; --profile is work" in result.out
    assert "not running" in result.out


# -- reload


def test_a_reload_says_what_holds_now_and_what_later(cli: Cli, inhabited: Home, door: Door) -> None:
    answer = {"hash": "x", "live": ["limits.tool_timeout_ms"], "restart": ["http.port"]}
    door.says("POST", "/admin/v1/config/reload", answer)
    result = cli("config", "reload")
    assert result.out.splitlines() == [
        "Applied: limits.tool_timeout_ms.",
        "Restart required: http.port. Run `palyra restart`.",
    ]
    assert json.loads(cli("config", "reload", "--json").out) == answer


def test_a_reload_without_a_change_says_so(cli: Cli, inhabited: Home, door: Door) -> None:
    door.says("POST", "/admin/v1/config/reload", {"hash": "x", "live": [], "restart": []})
    assert cli("config", "reload").out == "No changes.\n"


def test_wrong_settings_are_not_sent_to_the_daemon(cli: Cli, inhabited: Home, door: Door) -> None:
    inhabited.config.write_text("[http]\nprot = 1\n")
    assert cli("config", "reload").code == 2
    assert door.seen == []
