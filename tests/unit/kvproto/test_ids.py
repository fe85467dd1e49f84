"""Keys chain over the whole prefix and over everything that changes the bytes."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchunk.ids import ROOT_KEY, ChunkKey, KvIdentity, chunk_key, prefix_keys
from kvproto.ids import format_address, members_of, parse_address

NAMESPACE = KvIdentity(model="llama", chunk_tokens=4)


def test_keys_are_fixed() -> None:
    keys = prefix_keys(NAMESPACE, list(range(10)))
    assert [key.hex() for key in keys] == ["08f953453874d952cbea43b3a9fe48d1", "ca1bebd11f1e98eef2060b7070a25c57"]


def test_a_key_depends_on_everything_before_it() -> None:
    one = prefix_keys(NAMESPACE, [1, 2, 3, 4, 5, 6, 7, 8])
    other = prefix_keys(NAMESPACE, [1, 2, 3, 9, 5, 6, 7, 8])
    assert one[1] != other[1]
    assert prefix_keys(NAMESPACE, [5, 6, 7, 8], parent=one[0]) == [one[1]]


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(KvIdentity)])
def test_every_field_of_a_namespace_counts(field: str) -> None:
    old = getattr(NAMESPACE, field)
    other = old + 1 if isinstance(old, int) else bytes(16) if isinstance(old, bytes) else old + "x"
    changed = dataclasses.replace(NAMESPACE, **{field: other})
    assert changed.digest() != NAMESPACE.digest()


def test_a_tenant_s_keys_follow_from_its_secret_and_do_not_show_it() -> None:
    tenant = dataclasses.replace(NAMESPACE, tenant_secret=b"sixteen bytes at least")
    keys = prefix_keys(tenant, list(range(10)))
    assert [key.hex() for key in keys] == ["a3a4700e962cb767d92def64d8ee5d4f", "5bf0a0463403d814643b37c71111e21b"], (
        "as docs/reference/wire.md says"
    )
    salted = dataclasses.replace(tenant, tenant_salt="s")
    others = [
        prefix_keys(one, list(range(10)))
        for one in (NAMESPACE, salted, dataclasses.replace(tenant, tenant_secret=bytes(16)))
    ]
    assert not set(keys) & {key for chain in others for key in chain}
    assert b"sixteen" not in repr(tenant).encode()
    with pytest.raises(ValueError, match="at least 16 bytes, not 15") as refused:
        KvIdentity("m", tenant_secret=b"fifteen bytes!!")
    assert "fifteen" not in str(refused.value)


def test_a_secret_s_whole_length_counts() -> None:
    long = [dataclasses.replace(NAMESPACE, tenant_secret=bytes(100) + bytes([last])) for last in range(2)]
    assert long[0].digest() != long[1].digest()


def test_fields_do_not_run_into_each_other() -> None:
    assert KvIdentity(model="a", revision="bc").digest() != KvIdentity(model="ab", revision="c").digest()


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        chunk_key(ChunkKey(b"short"), bytes(32), [1])
    with pytest.raises(ValueError, match="32 bytes"):
        chunk_key(ROOT_KEY, b"short", [1])


@given(address=st.integers(0, 2**32 - 1))
def test_addresses_round_trip(address: int) -> None:
    assert parse_address(format_address(address)) == address


@pytest.mark.parametrize("text", ["", "1.2.3", "1.2.3.4.5", "256.1.1.1", "a.b.c.d", "1.2.3.-4", "²2.1.1.1"])
def test_bad_addresses_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="not an IPv4 address"):
        parse_address(text)


@given(members=st.sets(st.integers(0, 63)))
def test_members_of_a_bitmap(members: set[int]) -> None:
    assert list(members_of(sum(1 << member for member in members))) == sorted(members)
