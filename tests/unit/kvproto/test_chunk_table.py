"""Chunks in columns: found by key, linked to their parents, their rows used again."""

import random

import pytest

from kvchunk.ids import ChunkKey, Digest
from kvproto.chunk_columns import ON_DISK, PINNED, Record, pack, unpack
from kvproto.chunk_table import KNOWN, NONE, ChunkTable, Interned
from kvproto.integrity import Integrity
from kvproto.limits import CHUNK_BYTES_MAX, PREFIX_CHUNKS_MAX
from kvproto.records import RecordError
from kvproto.rpc import control_pb2 as rpc

DIGEST = Digest(b"\x02" + bytes(range(32)))


def key(number: int) -> ChunkKey:
    return ChunkKey(number.to_bytes(16, "big"))


@pytest.mark.parametrize("seed", range(5))
def test_a_table_knows_what_a_dictionary_would(seed: int) -> None:
    rng, table = random.Random(seed), ChunkTable()
    known: dict[int, int | None] = {}
    for _ in range(6000):
        number = rng.randrange(1, 400)
        row = table.row(key(number))
        if rng.random() < 0.55:
            parent = rng.choice((None, rng.randrange(1, 400)))
            if parent == number:
                continue
            known[number] = parent
            digest = DIGEST if number % 2 else Digest(b"\x01" + bytes(8))
            above = None if parent is None else key(parent)
            table.know(table.place(key(number)), above, number, digest, number, f"n{number % 7}")
        elif row != NONE and table.flags[row] & KNOWN:
            del known[number]
            table.forget(row)
            table.release(row)
    assert table.count == len(known)
    below: dict[int, set[ChunkKey]] = {}
    for number, parent in known.items():
        row = table.row(key(number))
        assert table.key(row) == key(number)
        assert table.flags[row] & KNOWN
        assert (table.sizes[row], table.positions[row], table.namespace(row)) == (number, number, f"n{number % 7}")
        assert table.digest(row) == (DIGEST if number % 2 else b"\x01" + bytes(8))
        above = table.parents[row]
        assert (None if above == NONE else table.key(above)) == (None if parent is None else key(parent))
        if parent is not None:
            below.setdefault(parent, set()).add(key(number))
    for number in range(1, 400):
        row = table.row(key(number))
        assert (row != NONE) == (number in known or number in below)
        children = set() if row == NONE else {table.key(child) for child in table.children(row)}
        assert children == below.get(number, set())
        if row != NONE:
            only = table.only_child(row)
            assert (only != NONE) == (len(children) == 1)
    assert len(table) <= 512, "rows are used again"
    assert len(table.namespaces) <= 8


def test_a_value_is_kept_while_a_row_has_it() -> None:
    values: Interned[str] = Interned("")
    first, second = values.take("a"), values.take("b")
    assert values.take("a") == first
    values.drop(first)
    assert values.values[first] == "a"
    values.drop(first)
    assert values.find("a") == NONE
    assert values.take("c") == first
    assert (values.values[first], values.values[second], len(values)) == ("c", "b", 3)


def columns(**changes: object) -> rpc.ChunkColumns:
    made = rpc.ChunkColumns()
    pack(
        made,
        keys=key(1) + key(2),
        parents=bytes(16) + key(1),
        digests=DIGEST + DIGEST,
        sizes=[100, CHUNK_BYTES_MAX],
        positions=[0, 1],
        namespace_indexes=[0, 1],
        flags=bytes((PINNED, ON_DISK)),
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_columns_come_apart_as_they_were_put_together() -> None:
    refused: list[bytes] = []
    records = unpack(columns(), ["m", "n"], Integrity.BLAKE3, lambda key, why: refused.append(key))
    assert records == [
        Record(key(1), None, 100, DIGEST, 0, "m", PINNED),
        Record(key(2), key(1), CHUNK_BYTES_MAX, DIGEST, 1, "n", ON_DISK),
    ]
    assert refused == []


@pytest.mark.parametrize(
    ("name", "value", "bad"),
    [
        ("parents", key(1) + key(1), [key(1)]),
        ("sizes", (0).to_bytes(8, "little") + (CHUNK_BYTES_MAX + 1).to_bytes(8, "little"), [key(1), key(2)]),
        ("positions", bytes(4) + PREFIX_CHUNKS_MAX.to_bytes(4, "little"), [key(2)]),
        ("namespace_indexes", bytes(4) + b"\x02\0\0\0", [key(2)]),
        ("digests", DIGEST + b"\x01" + bytes(32), [key(2)]),
        ("digests", (b"\x01" + bytes(8)) * 2, [key(1), key(2)]),
    ],
)
def test_a_bad_record_costs_that_record(name: str, value: bytes, bad: list[bytes]) -> None:
    refused: list[bytes] = []
    records = unpack(columns(**{name: value}), ["m", "n"], Integrity.BLAKE3, lambda key, why: refused.append(key))
    assert refused == bad
    assert [one.key for one in records] == [one for one in (key(1), key(2)) if one not in bad]


@pytest.mark.parametrize("name", ["keys", "parents", "sizes", "digests", "positions", "namespace_indexes", "flags"])
def test_columns_that_do_not_fit_are_refused_whole(name: str) -> None:
    broken = columns()
    setattr(broken, name, getattr(broken, name)[:-1])
    with pytest.raises(RecordError):
        unpack(broken, ["m", "n"], Integrity.BLAKE3, lambda key, why: None)
