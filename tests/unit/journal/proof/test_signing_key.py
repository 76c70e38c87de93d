"""The key: made once, for its owner only, and never mistaken for another."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from nacl.signing import SigningKey

from palyra.journal.proof.signing_key import JournalKeyNotReadable, KeySigner, is_signed, load_or_create, public_key

DATA = b'{"number":1}'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.key"


def test_a_key_is_made_once_and_found_again(path: Path) -> None:
    made = load_or_create(path)
    found = load_or_create(path)

    assert found.public_key == made.public_key
    assert public_key(path) == made.public_key


def test_two_homes_have_two_keys(tmp_path: Path) -> None:
    assert load_or_create(tmp_path / "one").public_key != load_or_create(tmp_path / "two").public_key


def test_a_key_is_for_its_owner_only_and_leaves_nothing_beside_it(path: Path) -> None:
    before = os.umask(0)
    try:
        load_or_create(path)
    finally:
        os.umask(before)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [found.name for found in path.parent.iterdir()] == ["journal.key"]


def test_a_key_that_was_half_written_is_made_anew(path: Path) -> None:
    path.with_suffix(".new").write_text("12ab")

    assert is_signed(load_or_create(path).public_key, DATA, load_or_create(path).sign(DATA))


def test_a_home_without_a_key_has_no_public_one(path: Path) -> None:
    assert public_key(path) is None
    assert not path.exists()


@pytest.mark.parametrize("text", ["", "no key", "12", "zz" * 32, "00" * 31, "00" * 33, "00" * 32 + "0", "é"])
@pytest.mark.parametrize("ask", [load_or_create, public_key])
def test_a_file_that_holds_no_key_is_an_error_that_names_it_and_changes_nothing(
    path: Path, text: str, ask: Callable[[Path], object]
) -> None:
    path.write_text(text)

    with pytest.raises(JournalKeyNotReadable, match=r"journal\.key"):
        ask(path)
    assert path.read_text() == text


def test_a_key_that_is_no_text_is_an_error_that_names_it(path: Path) -> None:
    path.write_bytes(b"\xff" * 64)

    with pytest.raises(JournalKeyNotReadable, match=r"journal\.key"):
        load_or_create(path)


def test_a_folder_in_the_place_of_the_key_is_an_error_that_names_it(path: Path) -> None:
    path.mkdir()

    with pytest.raises(JournalKeyNotReadable, match=r"journal\.key"):
        load_or_create(path)


def test_the_error_never_shows_what_the_file_holds(path: Path) -> None:
    path.write_text("ab" * 31 + "secret")

    with pytest.raises(JournalKeyNotReadable) as caught:
        load_or_create(path)
    assert "secret" not in str(caught.value)


# -- signatures


def a_signer(number: int = 1) -> KeySigner:
    return KeySigner(SigningKey(bytes([number]) * 32))


def test_what_was_signed_is_recognised(path: Path) -> None:
    signer = load_or_create(path)

    assert is_signed(signer.public_key, DATA, signer.sign(DATA))
    assert is_signed(signer.public_key, b"", signer.sign(b""))


def test_other_data_another_key_and_another_signature_are_not() -> None:
    signer, other = a_signer(1), a_signer(2)
    signature = signer.sign(DATA)

    assert not is_signed(signer.public_key, DATA + b" ", signature)
    assert not is_signed(other.public_key, DATA, signature)
    assert not is_signed(signer.public_key, DATA, other.sign(DATA))


def test_a_signature_is_written_in_one_way_only() -> None:
    signer = a_signer()
    signature = signer.sign(DATA)

    for other in (
        signature.upper(),
        signature + " ",
        " " + signature,
        signature[:2] + " " + signature[2:],
        signature + "\n",
    ):
        assert not is_signed(signer.public_key, DATA, other)


@pytest.mark.parametrize("nonsense", ["", "zz", "00", "0", "00" * 32, "00" * 64, "00" * 65, "é" * 64])
def test_nonsense_is_no_signature_and_no_key(nonsense: str) -> None:
    signer = a_signer()

    assert not is_signed(signer.public_key, DATA, nonsense)
    assert not is_signed(nonsense, DATA, signer.sign(DATA))
    assert not is_signed(nonsense, DATA, nonsense)
