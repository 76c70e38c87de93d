"""References to secrets: followed when they are used, and said to lead nowhere when they do."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.backends import fail
from keyring.errors import KeyringLocked

from palyra.secret_references import SecretReferenceInvalid, SecretReferenceNotFound, parse, secret_of

SECRET = "postgresql://palyra:s3cret@db/palyra"


@pytest.mark.parametrize("text", ["", SECRET, "postgresql://db", "plain", "host=db", "A:b", "C:\\path"])
def test_a_secret_that_is_no_reference_stands_for_itself(tmp_path: Path, text: str) -> None:
    assert parse(text) is None
    assert secret_of(text, base=tmp_path) == text


@pytest.mark.parametrize("text", ["env:NAME", "file:/a/b", "file:relative", "keyring:service/name/more", "vault:name"])
def test_a_reference_reads_as_it_was_written(text: str) -> None:
    assert str(parse(text)) == text


@pytest.mark.parametrize("text", ["vaults:x", "http:x", "env:", "file:", "keyring:x", "keyring:/x", "keyring:x/"])
def test_what_only_looks_like_a_reference_is_refused(text: str) -> None:
    with pytest.raises(SecretReferenceInvalid):
        parse(text)


def test_a_variable_and_a_file_are_read_when_they_are_used(tmp_path: Path) -> None:
    environ = {"NAME": f" {SECRET}\n"}
    assert secret_of("env:NAME", base=tmp_path, environ=environ) == SECRET
    for name in ("secret", str(tmp_path / "secret")):
        for value in ("first", "second"):
            (tmp_path / "secret").write_text(value + "\n")
            assert secret_of(f"file:{name}", base=tmp_path) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("env:NOT_THERE", "env:NOT_THERE is not set or does not exist"),
        ("file:not-there", r"file:not-there cannot be read \(No such file or directory\)"),
        ("file:/dev/zero", "is longer than 65536 characters"),
        ("file:empty", "file:empty is not set or does not exist"),
        ("file:binary", r"cannot be read \(not UTF-8\)"),
        ("file:.", "cannot be read"),
        ("vault:name", "the vault is not open yet"),
    ],
)
def test_a_reference_that_leads_nowhere_says_so(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(SecretReferenceNotFound, match=why):
        secret_of(text, base=tmp_path, environ={})


def test_a_keyring_that_is_not_installed_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(SecretReferenceNotFound, match=re.escape("pip install 'palyra[keyring]'")):
        secret_of("keyring:palyra/database", base=tmp_path)


class Kept(KeyringBackend):
    """A keyring in memory, which may be locked."""

    priority = 0

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.entries: dict[tuple[str, str], str] = {}
        self.locked = False

    def get_password(self, service: str, username: str) -> str | None:
        if self.locked:
            raise KeyringLocked("Failed to unlock\nthe collection!")
        return self.entries.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.entries[service, username] = password


@pytest.fixture
def kept() -> Iterator[Kept]:
    before, kept = keyring.get_keyring(), Kept()
    keyring.set_keyring(kept)
    yield kept
    keyring.set_keyring(before)


def test_a_keyring_is_asked_for_the_service_and_the_name(tmp_path: Path, kept: Kept) -> None:
    keyring.set_password("palyra", "data/base", SECRET)
    assert secret_of("keyring:palyra/data/base", base=tmp_path) == SECRET
    with pytest.raises(SecretReferenceNotFound, match="keyring:palyra/other is not set or does not exist"):
        secret_of("keyring:palyra/other", base=tmp_path)


def test_a_keyring_that_is_locked_is_said_so(tmp_path: Path, kept: Kept) -> None:
    kept.locked = True
    with pytest.raises(
        SecretReferenceNotFound, match=r"the keyring reports Failed to unlock the collection!\. Unlock it"
    ):
        secret_of("keyring:palyra/database", base=tmp_path)


def test_a_machine_without_a_keyring_is_said_so(tmp_path: Path, kept: Kept) -> None:
    keyring.set_keyring(fail.Keyring())  # type: ignore[no-untyped-call]
    with pytest.raises(SecretReferenceNotFound, match="the keyring reports No recommended backend was available"):
        secret_of("keyring:palyra/database", base=tmp_path)
