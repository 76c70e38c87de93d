"""The vault's key: made once, for its owner only; and what it seals opens for what it was sealed to."""

import os
import stat
import threading
from pathlib import Path

import pytest

from palyra.core.ids import PrincipalId
from palyra.journal.atomic_file import FileNotWritable
from palyra.journal.vault.vault_key import SealedContext, SecretDamaged, VaultKey, VaultKeyInvalid, VaultKeySource
from palyra.secret_references import parse

ANA = PrincipalId("user:ana")
BOND = SealedContext(ANA, "github", 1, "{}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "vault.key"


def test_a_key_is_made_once_and_found_again(path: Path) -> None:
    place = VaultKeySource(path)
    assert place.load() is None
    made = place.load_or_create()
    assert place.load_or_create() == place.load() == VaultKeySource(path).load() == made
    assert len(made.raw) == 32


def test_a_key_is_for_its_owner_only_and_leaves_nothing_beside_it(path: Path) -> None:
    before = os.umask(0)
    try:
        VaultKeySource(path).load_or_create()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_of_many_who_make_the_key_at_once_all_get_one(path: Path) -> None:
    barrier = threading.Barrier(8)
    found: list[VaultKey] = []

    def make() -> None:
        barrier.wait()
        found.append(VaultKeySource(path).load_or_create())

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("text", ["", "abc", "zz" * 32, "ab" * 31, "ab" * 33, "é" * 64])
def test_what_is_no_key_is_refused_and_never_replaced(path: Path, text: str) -> None:
    path.write_text(text)
    for attempt in (VaultKeySource(path).load, VaultKeySource(path).load_or_create):
        with pytest.raises(VaultKeyInvalid, match=r"[Rr]estore"):
            attempt()
    assert path.read_text() == text


def test_a_key_that_can_not_be_written_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotWritable):
        VaultKeySource(tmp_path / "nowhere" / "vault.key").load_or_create()


def test_the_key_may_stand_elsewhere(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "ab" * 32)
    place = VaultKeySource(path, reference=parse("env:THE_KEY"))
    assert place.load_or_create() == VaultKey(b"\xab" * 32)
    assert not path.exists()

    monkeypatch.delenv("THE_KEY")
    with pytest.raises(VaultKeyInvalid, match="env:THE_KEY is not set or does not exist"):
        place.load_or_create()


def test_a_key_does_not_show_itself_and_its_id_tells_it_from_others() -> None:
    one, other = VaultKey(b"a" * 32), VaultKey(b"b" * 32)
    assert repr(one) == "VaultKey()"
    assert one.key_id != other.key_id
    assert one.raw.hex() not in one.key_id
    assert one.key_id == VaultKey(b"a" * 32).key_id


def test_the_same_value_is_never_sealed_alike() -> None:
    key = VaultKey(b"a" * 32)
    assert key.seal(b"value", BOND) != key.seal(b"value", BOND)


@pytest.mark.parametrize("sealed", ["", "abc", "****", "AAAA", "é"])
def test_what_was_never_sealed_does_not_open(sealed: str) -> None:
    with pytest.raises(SecretDamaged, match="palyra secrets set github"):
        VaultKey(b"a" * 32).open(sealed, BOND)
