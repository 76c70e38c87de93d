"""References to secrets: followed when they are used, and said to lead nowhere when they do."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from palyra.references import ReferenceInvalid, ReferenceUnresolved, parse, resolve, secret_of

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
    with pytest.raises(ReferenceInvalid):
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
        ("env:NOT_THERE", "there is nothing at env:NOT_THERE"),
        ("file:not-there", r"file:not-there can not be read \(No such file or directory\)"),
        ("file:empty", "there is nothing at file:empty"),
        ("file:binary", r"can not be read \(no UTF-8\)"),
        ("file:.", "can not be read"),
        ("vault:name", "the vault is not open yet"),
    ],
)
def test_a_reference_that_leads_nowhere_says_so(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(ReferenceUnresolved, match=why):
        secret_of(text, base=tmp_path, environ={})


def test_a_keyring_that_is_not_installed_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(ReferenceUnresolved, match="pip install keyring"):
        secret_of("keyring:palyra/database", base=tmp_path)


def test_a_keyring_is_asked_for_the_service_and_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", _keyring({("palyra", "data/base"): SECRET}))
    assert secret_of("keyring:palyra/data/base", base=tmp_path) == SECRET
    with pytest.raises(ReferenceUnresolved, match="there is nothing at keyring:palyra/other"):
        secret_of("keyring:palyra/other", base=tmp_path)


def test_a_keyring_that_is_locked_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", _keyring(None))
    reference = parse("keyring:palyra/database")
    assert reference is not None
    with pytest.raises(ReferenceUnresolved, match="the keyring says it is locked"):
        resolve(reference, base=tmp_path)


def _keyring(entries: dict[tuple[str, str], str] | None) -> ModuleType:
    """Stand in for the package, which asks the desktop's own keyring."""

    def get_password(service: str, name: str) -> str | None:
        if entries is None:
            raise RuntimeError("it is locked")
        return entries.get((service, name))

    module = ModuleType("keyring")
    module.get_password = get_password  # type: ignore[attr-defined]
    return module
