"""Relays over racks: the rule alone, and the shipping cores on modelled links. Ratios are times over the core's S/B."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproto.limits import MS
from kvproto.session.relay.racks import FORGOTTEN_NS, MISSED_MAX, PATIENCE_NS, SOURCES_MAX, Meeting, RackTree
from tests.unit.kvproto.relay_network import PIECE_BYTES, Host, Network, key_of

CORE = 6.25e6
CHUNKS, PIECES = 6, 16
TOTAL = CHUNKS * PIECES
IDEAL_S = TOTAL * PIECE_BYTES / CORE


# --- the rule --------------------------------------------------------------------------------------------------------


def rack_of(endpoint: str) -> str:
    return endpoint.partition("-")[0]


def begun(racks: dict[str, int], turn: int, home: str = "r0") -> tuple[RackTree, list[Meeting]]:
    tree = RackTree(home, turn)
    met = [
        one
        for name, members in racks.items()
        for member in range(members)
        for one in tree.join(f"{name}-{member}", name, 0)
    ]
    return tree, met + tree.begin(0)


def outside(met: list[Meeting]) -> dict[str, set[str]]:
    """By who reads from another rack: which one."""
    found: dict[str, set[str]] = {}
    for reader, sources in met:
        for source in sources:
            if rack_of(source) != rack_of(reader):
                found.setdefault(reader, set()).add(rack_of(source))
    return found


@given(
    st.dictionaries(st.integers(0, 20).map(lambda one: f"r{one}"), st.integers(1, 40), min_size=1),
    st.integers(0, 1000),
)
def test_each_rack_has_one_entry_that_reads_from_one_other_rack(racks: dict[str, int], turn: int) -> None:
    tree, met = begun(racks, turn)
    reads = outside(met)
    below = racks.keys() - {"r0"}
    granted = [one for one in tree_members(racks) if tree.is_granted(one, rack_of(one))]
    if "r0" in racks:
        assert {rack_of(one) for one in granted} == {"r0"}
        assert len(granted) == racks["r0"]
    else:
        assert len(granted) == 1
    assert Counter(map(rack_of, reads)) == Counter(below - ({rack_of(granted[0])} if "r0" not in racks else set()))
    parents = {rack_of(reader): above for reader, (above,) in ((one, tuple(two)) for one, two in reads.items())}
    children = Counter(parents.values())
    assert children.pop("r0", 0) <= 1
    assert max(children.values(), default=0) <= 2
    for name in below:  # up to the root, without a circle
        for _ in range(len(racks)):
            name = parents.get(name, name)
        assert name == ("r0" if "r0" in racks else rack_of(granted[0]))
    assert all(len(one.sources) <= SOURCES_MAX for one in met if outside([one]))


def tree_members(racks: dict[str, int]) -> list[str]:
    return [f"{name}-{member}" for name, members in racks.items() for member in range(members)]


@pytest.mark.parametrize("count", [3, 4, 7, 15])
def test_over_chunks_every_rack_passes_on_alike(count: int) -> None:
    racks = {f"r{one}": 2 for one in range(count + 1)}
    carries: Counter[str] = Counter()
    for turn in range(count):
        carries.update(one for above in outside(begun(racks, turn)[1]).values() for one in above)
    below = [carries[f"r{one}"] for one in range(1, count + 1)]
    assert carries["r0"] == count
    assert max(below) <= count, "as often as there are chunks"
    assert max(below) - min(below) <= 2


def test_one_rack_is_as_ever() -> None:
    tree, met = begun({"": 9}, 3, home="")
    assert not outside(met)
    assert all(tree.is_granted(f"-{member}", "") for member in range(9))
    assert {one.reader: set(one.sources) for one in met if len(one.sources) == 8} == {
        "-8": {f"-{member}" for member in range(8)}
    }


def test_a_rack_that_comes_late_is_hung_below_and_its_first_reader_is_the_entry() -> None:
    tree, _ = begun({"r0": 1, "r1": 1}, 0)
    assert outside(tree.join("r2-0", "r2", MS)) == {"r2-0": {"r1"}}
    assert outside(tree.join("r2-1", "r2", MS)) == {}
    assert outside(tree.join("r3-0", "r3", MS)) == {"r3-0": {"r1"}}
    assert outside(tree.join("r4-0", "r4", MS)) == {"r4-0": {"r2"}}


def test_a_reader_of_the_holders_rack_that_comes_late_reads_what_was_granted_from_below() -> None:
    tree, _ = begun({"r1": 1}, 0)
    assert tree.is_granted("r1-0", "r1")
    assert outside(tree.join("r0-0", "r0", MS)) == {"r0-0": {"r1"}, "r1-0": {"r0"}}
    assert tree.is_granted("r0-0", "r0")
    assert not tree.is_granted("r1-0", "r1")


def test_an_entry_that_leaves_is_replaced_at_once() -> None:
    tree, met = begun({"r0": 1, "r1": 3}, 0)
    ((entry, _),) = outside(met).items()
    ((other, above),) = outside(tree.leave(entry, "r1", MS)).items()
    assert other != entry
    assert above == {"r0"}


def test_who_is_not_fit_is_entry_only_where_there_is_nobody_else() -> None:
    tree = RackTree("r0", 0)
    for name in ("r0-0", "r1-0", "r1-1", "r2-0"):
        tree.join(name, rack_of(name), 0)
    for name in ("r1-0", "r2-0"):
        tree.set_fit(name, rack_of(name), 0, is_fit=False)
    assert outside(tree.begin(0)).keys() == {"r1-1", "r2-0"}


def test_what_a_rack_misses_and_its_entry_does_not_makes_another_one_the_entry() -> None:
    tree, met = begun({"r0": 1, "r1": 3}, 0)
    ((entry, _),) = outside(met).items()
    other = next(one for one in ("r1-0", "r1-1") if one != entry)
    assert tree.missed(other, "r1", 5, 100 * MS) == ("", []), "it is being brought, perhaps"
    assert tree.missed(other, "r1", 5, 100 * MS + PATIENCE_NS) == (entry, [Meeting(other, ("r0-0",))])
    assert tree.missed(entry, "r1", 5, 101 * MS + PATIENCE_NS) == ("", []), "it has just been changed"


def test_what_an_entry_misses_comes_from_further_up_and_nobody_is_replaced() -> None:
    racks = {"r0": 1, "r1": 2, "r2": 2}
    tree, met = begun(racks, 0)
    entry = next(one for one, above in outside(met).items() if above != {"r0"})
    name = rack_of(entry)
    mate = next(one for one in (f"{name}-0", f"{name}-1") if one != entry)
    for at_ms in (0, 100):
        assert tree.missed(entry, name, 5, at_ms * MS) == ("", [])
        assert tree.missed(mate, name, 5, at_ms * MS) == ("", [])
    assert tree.missed(mate, name, 5, 160 * MS) == ("", []), "the entry misses it, too"
    replaced, changed = tree.missed(entry, name, 5, 200 * MS)
    assert not replaced
    assert outside(changed)[entry] == {"r1", "r2", "r0"} - {name}
    assert not tree.is_granted(entry, name)
    for at_ms in (400, 600):
        tree.missed(entry, name, 6, at_ms * MS)
    assert tree.is_granted(entry, name), "nobody else is left"


def test_what_was_missed_is_forgotten_and_little_of_it_is_kept() -> None:
    tree, _ = begun({"r0": 1, "r1": 3}, 0)
    for piece in range(10 * MISSED_MAX):
        for reader in ("r1-0", "r1-1", "r1-2"):
            assert tree.missed(reader, "r1", piece, MS)[0] == ""
    replaced, _ = tree.missed("r1-2", "r1", 10_000, FORGOTTEN_NS + 2 * MS)
    assert not replaced


# --- the cores -------------------------------------------------------------------------------------------------------


class Racks:
    """Four racks of four on links of twice the core's rate; the holder is in the first. `happens`: at 0.4 S/B."""

    def __init__(
        self,
        happens: Callable[[Network, list[Host]], None] = lambda _network, _hosts: None,
        *,
        stagger: float = 0.0,
        seed: int = 1,
        holders: tuple[int, ...] = (0,),
    ) -> None:
        chance = random.Random(seed)
        self.network = network = Network(CORE)
        chunks = [(key_of(number), PIECES) for number in range(1, CHUNKS + 1)]
        self.holders = [network.host(f"holder{rack}:1", 2 * CORE, rack=f"r{rack}") for rack in holders]
        for holder in self.holders:
            holder.whole.update(chunks)
        self.readers = [
            network.host(f"n{rack}-{member}:1", 2 * CORE, rack=f"r{rack}")
            for rack in range(4)
            for member in range(3 if rack in holders else 4)
        ]
        starts = {reader.name: chance.random() * max(0.001, stagger * IDEAL_S) for reader in self.readers}
        for reader in self.readers:
            own = [one.name for one in self.holders if one.rack == reader.rack]
            keepers = own + [one.name for one in self.holders if one.rack != reader.rack]
            network.fetch(reader, chunks, keepers, int(starts[reader.name] * 1e9))
        network.at(int(0.4 * IDEAL_S * 1e9), lambda: happens(network, self.readers))
        network.run()
        self.ratios = {
            one.name: (one.ended_ns / 1e9 - starts[one.name]) / IDEAL_S
            for one in self.readers
            if len(one.whole) == CHUNKS
        }

    @property
    def mean(self) -> float:
        return sum(self.ratios.values()) / len(self.ratios)

    def carried(self) -> dict[str, tuple[float, float]]:
        """By rack: what its link carried out and in, over S."""
        up, down = self.network.core_up, self.network.core_down
        return {f"r{rack}": (up[f"r{rack}"].total / TOTAL, down[f"r{rack}"].total / TOTAL) for rack in range(4)}


def test_each_chunk_crosses_each_link_about_once() -> None:
    found = Racks()
    assert len(found.ratios) == 15
    assert found.mean < 1.2
    assert found.holders[0].sent_pieces < 1.05 * TOTAL
    assert all(max(ways) < 1.1 for ways in found.carried().values())
    for rack in ("r1", "r2", "r3"):
        once = sum(pieces == PIECES for pieces in found.network.core_down[rack].pieces.values())
        assert once >= CHUNKS - 2, "unicast would be four times"


@pytest.mark.parametrize("seed", range(2))
def test_late_readers_have_all_and_links_stay_spared(seed: int) -> None:
    found = Racks(stagger=1.0, seed=seed)
    assert len(found.ratios) == 15
    assert found.mean < 1.3
    assert all(down < 1.3 for _, down in found.carried().values())


def test_a_rack_with_a_holder_needs_no_other() -> None:
    found = Racks(holders=(0, 2))
    assert len(found.ratios) == 14
    assert found.carried()["r2"][1] < 0.1


def dies(network: Network, readers: list[Host]) -> None:
    network.kill(readers[5])


def stalls(_network: Network, readers: list[Host]) -> None:
    readers[5].is_stalled = True


def lies(_network: Network, readers: list[Host]) -> None:
    readers[5].lies = True


@pytest.mark.parametrize("happens", [dies, stalls, lies])
def test_another_reader_becomes_the_entry(happens: Callable[[Network, list[Host]], None]) -> None:
    found = Racks(happens)
    others = [one for one in found.readers if one is not found.readers[5]]
    assert all(one.name in found.ratios for one in others)
    assert sum(found.ratios[one.name] for one in others) / len(others) < 1.5
    assert {name for one in others for name in one.blamed} <= ({found.readers[5].name} if happens is lies else set())
    assert max(down for _, down in found.carried().values()) < 1.4


def test_a_link_of_the_core_fails_and_the_other_racks_go_on() -> None:
    rack = "r1"
    found = Racks(lambda network, _readers: network.cut.add(rack))
    for reader in found.readers:
        if reader.rack != rack:
            assert reader.name in found.ratios
            assert not reader.blamed


def test_all_readers_of_the_holders_rack_stall() -> None:
    def happens(_network: Network, readers: list[Host]) -> None:
        for reader in readers[:3]:
            reader.is_stalled = True

    found = Racks(happens)
    assert all(reader.name in found.ratios for reader in found.readers[3:])
