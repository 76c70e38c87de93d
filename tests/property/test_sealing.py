"""Whatever is sealed opens as it was, for whom it was, and for nobody and nothing else."""

import base64
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from palyra.core.ids import PrincipalId
from palyra.journal.vault.vault_key import SealedContext, SecretDamaged, VaultKey

keys = st.binary(min_size=32, max_size=32).map(VaultKey)
values = st.binary(max_size=2000)
bonds = st.builds(
    SealedContext,
    principal=st.text(max_size=20).map(PrincipalId),
    name=st.text(max_size=20),
    version=st.integers(min_value=1, max_value=2**60),
    scope=st.text(max_size=40),
)


@given(keys, values, bonds)
def test_what_is_sealed_opens_as_it_was(key: VaultKey, value: bytes, bond: SealedContext) -> None:
    assert key.open(key.seal(value, bond), bond) == value


@given(keys, values, bonds, st.data())
def test_no_bit_of_it_can_be_changed(key: VaultKey, value: bytes, bond: SealedContext, data: st.DataObject) -> None:
    sealed = bytearray(base64.b64decode(key.seal(value, bond)))
    place = data.draw(st.integers(min_value=0, max_value=len(sealed) * 8 - 1))
    sealed[place // 8] ^= 1 << place % 8
    with pytest.raises(SecretDamaged):
        key.open(base64.b64encode(bytes(sealed)).decode(), bond)


@given(keys, values, bonds, bonds)
def test_it_opens_for_nothing_else(key: VaultKey, value: bytes, bond: SealedContext, other: SealedContext) -> None:
    assume(bond != other)
    sealed = key.seal(value, bond)
    changes = {name: getattr(other, name) for name in ("principal", "name", "version", "scope")}
    for wrong in (other, *(replace(bond, **{name: changed}) for name, changed in changes.items())):
        if wrong != bond:
            with pytest.raises(SecretDamaged):
                key.open(sealed, wrong)


@given(keys, keys, values, bonds)
def test_no_other_key_opens_it(key: VaultKey, other: VaultKey, value: bytes, bond: SealedContext) -> None:
    assume(key != other)
    with pytest.raises(SecretDamaged):
        other.open(key.seal(value, bond), bond)
