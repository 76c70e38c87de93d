"""A home that other users of the machine could change is not used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from palyra.daemon.process.home_setup import prepare_home
from palyra.home import Home, HomeOwnerMismatch, HomePermissionsTooOpen, find_home
from tests.support.needs import ROOT, needs

OTHER_USER = 4321


@pytest.fixture
def made(tmp_path: Path) -> Home:
    """A home as a daemon leaves it."""
    home = Home(tmp_path / "a home")
    for folder in (home.path, home.policy, home.plugins, home.plugins / "one"):
        folder.mkdir(mode=0o700)
    for file in (home.token, home.key, home.vault_key, home.config, home.journal, home.policy / "mine.cedar"):
        file.touch(mode=0o600)
    (home.plugins / "one" / "plugin.wasm").touch(mode=0o600)
    return home


def find(home: Home) -> Home:
    return find_home(home=str(home.path), environ={})


def test_a_private_home_and_one_that_can_only_be_looked_into_are_used(made: Home) -> None:
    assert find(made) == made
    made.path.chmod(0o755)
    made.config.chmod(0o644)
    made.journal.chmod(0o640)
    made.path.parent.chmod(0o755)
    assert find(made) == made


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702, 0o1777])
def test_a_home_that_others_can_change_is_refused_with_the_command_that_closes_it(made: Home, mode: int) -> None:
    made.path.chmod(mode)
    with pytest.raises(HomePermissionsTooOpen) as refused:
        find(made)
    assert refused.value.detail == (
        f"Other users can change {made.path} (mode {mode:04o}). Fix it with `chmod go-w '{made.path}'`."
    )
    made.path.chmod(mode & ~0o022)
    assert find(made) == made


@pytest.mark.parametrize(
    "name",
    ["token", "journal.key", "config.toml", "journal.db", "policy", "policy/mine.cedar", "plugins/one/plugin.wasm"],
)
@pytest.mark.parametrize("mode", [0o660, 0o606])
def test_a_file_that_others_can_change_is_refused(made: Home, name: str, mode: int) -> None:
    (made.path / name).chmod(mode | 0o100)
    with pytest.raises(HomePermissionsTooOpen, match=f"Other users can change .*{name}"):
        find(made)


@pytest.mark.parametrize("name", ["token", "journal.key", "vault.key"])
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_secret_that_others_can_read_is_refused(made: Home, name: str, mode: int) -> None:
    (made.path / name).chmod(mode)
    with pytest.raises(HomePermissionsTooOpen, match=f"Other users can read the secret .*{name}.*chmod 600"):
        find(made)


@needs(ROOT)
@pytest.mark.parametrize("name", ["", "config.toml", "policy", "plugins"])
def test_a_daemon_of_root_does_not_run_in_the_home_of_another_user(made: Home, name: str) -> None:
    prepare_home(made)
    os.chown(made.path / name, OTHER_USER, OTHER_USER)
    # Root may still look after it.
    assert find(made) == made
    with pytest.raises(HomeOwnerMismatch, match="belongs to 4321, and you are root"):
        prepare_home(made)


def test_what_commands_make_is_closed_whatever_the_umask_is() -> None:
    code = "import os\nfrom palyra.cli.app import main\ntry:\n main(['--version'])\nfinally:\n print(oct(os.umask(0)))"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, umask=0)
    assert said.stdout.splitlines()[-1] == "0o22"
