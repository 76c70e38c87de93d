"""Other users of the machine, and other packages than the ones that were locked."""

import os
import subprocess
import sys

from tests.attack.case import attack
from tests.attack.ground import Ground
from tests.support.daemon import Daemon, NotServing
from tests.unit.test_setup import set_up_with_a_wheel_of_our_own

OPEN = ("", "config.toml", "policy", "policy/mine.cedar", "plugins", "token", "vault.key", "journal.db")


def refusal(daemon: Daemon) -> str:
    """Start the daemon and return why it does not serve; nothing if it does."""
    try:
        daemon.start()
    except NotServing as refused:
        return refused.output
    return ""


@attack("a home, or a file of it, that every user can write")
def open_home(ground: Ground) -> None:
    daemon = ground.daemon()
    daemon.stop()
    home = daemon.home
    for folder in (home.policy, home.plugins):
        folder.mkdir(mode=0o700, exist_ok=True)
    for file in (home.policy / "mine.cedar", home.config, home.vault_key):
        file.touch(mode=0o600)
    for name in OPEN:
        path = home.path / name
        before = path.stat().st_mode & 0o777
        path.chmod(0o777)
        assert "home_permissions_too_open" in refusal(daemon), (
            f"the daemon serves although {name or 'its home'} has mode 0777"
        )
        argv = [sys.executable, "-m", "palyra", "--home", str(home.path), "status"]
        said = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert "home_permissions_too_open" in said.stderr, f"the command line uses {name or 'the home'}: {said.stderr}"
        path.chmod(before)
    daemon.start()


@attack("a token and keys that every user can read")
def readable_secrets(ground: Ground) -> None:
    daemon = ground.daemon()
    daemon.stop()
    for path in (daemon.home.token, daemon.home.key):
        path.chmod(0o644)
        assert "chmod 600" in refusal(daemon), f"the daemon serves although {path.name} has mode 0644"
        path.chmod(0o600)
    daemon.start()


@attack("a daemon started with a umask that closes nothing")
def open_umask(ground: Ground) -> None:
    before = os.umask(0)
    try:
        daemon = ground.daemon()
    finally:
        os.umask(before)
    found = [path for path in (daemon.home.path, *daemon.home.path.rglob("*")) if path.stat().st_mode & 0o077]
    assert not found, f"open to others: {found}"


@attack("a uv of the right name and version, and with other content")
def replaced_uv(ground: Ground) -> None:
    done = set_up_with_a_wheel_of_our_own(ground.folder)
    assert done.returncode != 0, "scripts/setup took it"
    assert not (ground.folder / "tree" / "was-run").exists(), "scripts/setup ran it"
