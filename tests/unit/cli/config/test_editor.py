"""Changes to config.toml: everything else stays as it is, and what would not load is not written."""

import os
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from palyra import config
from palyra.cli.config.editor import (
    Change,
    ConfigChanged,
    ConfigInvalid,
    ConfigNotEditable,
    ConfigNotWritable,
    change,
    edited,
    restore_text,
)
from palyra.cli.providers.settings import ProviderInUse, make_default, remove_provider, write_provider
from palyra.core.model.catalog import RoutingRule
from palyra.home import Home
from palyra.settings import ModelSettings, SettingsInvalid

FIELDS = {"dialect": "openai", "base_url": "http://127.0.0.1:9/v1", "key": "vault:new", "model": "m"}
ADD = write_provider("new", FIELDS, default=True)
GONE = remove_provider("new", ModelSettings(provider="new"), default="embedded")

WAYS = {
    "empty": "",
    "another section": "# hello\n[http]\nport = 1 # c\n",
    "a section": '[model]\n# which\nprovider = "embedded" # mine\n\n[http]\nport = 1\n',
    "a list over lines": '[model]\nfallback = [\n  "embedded", # first\n]\n\n[limits]\ntool_calls = 3\n',
    "a provider": "[model.providers.a]\n# A\ndialect = 'openai'\n",
    "a dotted key": "model.provider = 'embedded'\n",
    "out of order": "[model.providers.a]\ndialect = 'openai'\n[grpc]\nport = 2 # g\n[model]\nprovider = 'embedded'\n",
    "rules": "[[model.rules]]\nmodels = ['a'] # r\n\n[model.providers.a]\ndialect = 'openai'\n",
    "line ends": "[model]\r\nprovider = 'embedded' # w\r\n",
}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.mark.parametrize("text", WAYS.values(), ids=WAYS.keys())
def test_a_provider_comes_and_goes_and_all_comments_stay(text: str) -> None:
    made = edited(text, ADD)

    found = tomllib.loads(made)
    assert found["model"]["providers"]["new"] == FIELDS
    assert found["model"]["provider"] == "new"
    again = edited(made, GONE)
    before = tomllib.loads(text)
    assert "new" not in tomllib.loads(again)["model"].get("providers", {})
    for table in (made, again):
        assert [line for line in text.splitlines() if "#" in line and "provider" not in line] == [
            line for line in table.splitlines() if "#" in line and "provider" not in line
        ]
        kept = tomllib.loads(table)
        assert {key: value for key, value in kept.items() if key != "model"} == {
            key: value for key, value in before.items() if key != "model"
        }


def test_a_table_is_set_apart_from_the_next() -> None:
    made = edited('[model]\nprovider = "embedded"\n\n[http]\nport = 1\n', ADD)

    assert made.endswith('model = "m"\n\n[http]\nport = 1\n')
    assert edited("", ADD).endswith('model = "m"\n')


@pytest.mark.parametrize(
    "text", ["model = {provider = 'embedded'}\n", "[model]\nproviders = {a = {dialect = 'openai'}}\n"]
)
def test_what_the_editor_does_not_master_is_left_to_the_person(text: str) -> None:
    with pytest.raises(ConfigNotEditable):
        edited(text, ADD)


def test_of_a_provider_that_is_replaced_what_else_was_set_stays() -> None:
    made = edited(
        edited("", ADD).replace('model = "m"', 'model = "m" # old\nmax_attempts = 2'),
        write_provider("new", {"dialect": "gemini"}),
    )

    assert tomllib.loads(made)["model"]["providers"]["new"] == {"dialect": "gemini", "max_attempts": 2}


def test_what_would_not_load_is_not_written(home: Home) -> None:
    home.config.write_text("# mine\n")

    with pytest.raises(ConfigInvalid, match="unknown provider"):
        change(home, make_default("nobody"))
    with pytest.raises(ConfigInvalid, match="key in clear"):
        change(home, write_provider("new", {**FIELDS, "key": "sk-in-clear"}))

    assert home.config.read_text() == "# mine\n"
    assert os.listdir(home.path) == ["config.toml"]


def test_settings_that_are_wrong_already_are_told_as_they_are(home: Home) -> None:
    home.config.write_text("[htpp]\n")

    with pytest.raises(SettingsInvalid, match="unknown section"):
        change(home, ADD)


def test_the_file_keeps_its_mode_and_is_the_owners_if_it_is_new(home: Home) -> None:
    written = change(home, ADD)
    assert home.config.stat().st_mode & 0o777 == 0o600
    assert written.settings.model.providers["new"].model == "m"
    home.config.chmod(0o640)

    change(home, make_default("embedded"))

    assert home.config.stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link(home: Home, tmp_path: Path) -> None:
    place = tmp_path / "dotfiles"
    place.mkdir()
    (place / "palyra.toml").write_text("# kept elsewhere\n")
    home.config.symlink_to(place / "palyra.toml")

    change(home, ADD)

    assert home.config.is_symlink()
    assert (place / "palyra.toml").read_text().startswith("# kept elsewhere\n")


def test_a_change_is_taken_back_to_the_letter(home: Home) -> None:
    home.config.write_bytes(b"# mine\r\n\r\n\r\n")
    restore_text(home, change(home, ADD), GONE)
    assert home.config.read_bytes() == b"# mine\r\n\r\n\r\n"

    home.config.unlink()
    restore_text(home, change(home, ADD), GONE)
    assert not home.config.exists()


def test_what_somebody_else_wrote_meanwhile_is_not_lost(home: Home) -> None:
    written = change(home, ADD)
    home.config.write_text(written.after + "[http]\nport = 5\n")

    restore_text(home, written, GONE)

    found = tomllib.loads(home.config.read_text())
    assert found["http"] == {"port": 5}
    assert "providers" not in found["model"]


def test_a_file_that_changes_under_the_hand_is_not_overwritten(home: Home) -> None:
    def slow(tables: Any) -> None:
        ADD(tables)
        home.config.write_text("# theirs\n")

    with pytest.raises(ConfigChanged):
        change(home, slow)

    assert home.config.read_text() == "# theirs\n"
    assert os.listdir(home.path) == ["config.toml"]


def test_a_file_that_can_not_be_written_is_told_of(home: Home, tmp_path: Path) -> None:
    home.config.symlink_to(tmp_path / "not there" / "palyra.toml")

    with pytest.raises(ConfigNotWritable, match="No such file or directory"):
        change(home, ADD)


@pytest.mark.parametrize(
    ("settings", "default", "words"),
    [
        (ModelSettings(provider="new"), None, "is the default provider"),
        (ModelSettings(provider="new/large"), "new", "is the default provider"),
        (ModelSettings(rules=(RoutingRule(models=("a",)), RoutingRule(models=("b", "new/large")))), None, "Rule 2"),
    ],
)
def test_what_is_needed_is_not_taken_out(settings: ModelSettings, default: str | None, words: str) -> None:
    with pytest.raises(ProviderInUse, match=words):
        remove_provider("new", settings, default=default)


def test_who_is_taken_out_does_not_answer_for_others_either() -> None:
    text = edited('[model]\nfallback = ["new", "a/b", "new/large"]\n[model.providers.a]\ndialect = "openai"\n', ADD)
    gone: Change = remove_provider("new", ModelSettings(provider="a/b", fallback=("new", "a/b", "new/large")))

    assert tomllib.loads(edited(text, gone))["model"]["fallback"] == ["a/b"]


def test_commands_wait_for_one_another(home: Home) -> None:
    """Each reads what the one before it wrote, so that nothing is lost and nobody is turned away."""

    def add(number: int) -> None:
        change(home, write_provider(f"p{number}", {"dialect": "openai", "model": "m"}))

    with ThreadPoolExecutor(8) as together:
        list(together.map(add, range(16)))

    assert sorted(config.load(home).model.providers) == sorted(f"p{number}" for number in range(16))
