"""Tenants of one pool: whose chunks go when it is full, and how much of it one can hold."""

from __future__ import annotations

import random

import pytest

from hostagent.api.access import Peer
from hostagent.api.tenancy import Pace, Tenancy, TenantTerms
from hostagent.config import parse
from hostagent.pool import tenants
from hostagent.pool.chunks import Chunk, ChunkPool, Refusal
from hostagent.pool.tenants import HELD_SHARE_MAX, NOBODY, Tenants
from kvchunk.ids import ChunkKey
from kvdaemon.errors import ConfigError
from tests.digests import hashed
from tests.unit.hostagent.agent_harness import key

PAGE = 4096


class Bench:
    """A pool of 16 pages."""

    def __init__(self, weights: dict[str, float] | None = None, pages: int = 16) -> None:
        self.now_ns = 0
        self.tenants = Tenants(pages * PAGE, weights)
        self.pool = ChunkPool(pages * PAGE, PAGE, self._clock, tenants=self.tenants)

    def _clock(self) -> int:
        self.now_ns += 1_000_000
        return self.now_ns

    def put(self, number: int, tenant: str) -> Chunk | Refusal:
        made = self.pool.reserve(key(number), None, PAGE, tenant=tenant)
        if isinstance(made, Chunk):
            self.pool.commit(made, hashed(number))
        return made

    def pages(self, tenant: str) -> int:
        return self.tenants.used_bytes[tenant] // PAGE


def test_a_tenant_alone_uses_all_of_the_pool() -> None:
    bench = Bench()
    bench.tenants.engine_connected("red")
    for number in range(100):
        assert isinstance(bench.put(number, "red"), Chunk)
    assert bench.pages("red") == 16


def test_a_tenant_within_its_share_loses_nothing_to_one_beyond() -> None:
    bench = Bench()
    for tenant in ("red", "blue"):
        bench.tenants.engine_connected(tenant)
    for number in range(4):
        bench.put(number, "blue")
    for number in range(100, 1000):
        assert isinstance(bench.put(number, "red"), Chunk), "red pays for red's chunks"
    assert bench.pages("blue") == 4
    assert all(bench.pool.find(key(number)) is not None for number in range(4))
    for number in range(10, 20):
        assert isinstance(bench.put(number, "blue"), Chunk)
    assert (bench.pages("red"), bench.pages("blue")) == (8, 8), "and red loses what it has beyond its share"


def test_many_cheap_chunks_that_are_spared_do_not_hold_anybody_up() -> None:
    bench = Bench(pages=4096)
    for tenant in ("red", "blue"):
        bench.tenants.engine_connected(tenant)
    for number in range(2000):
        bench.put(number, "blue")
    parent = None
    for number in range(10_000, 10_000 + 2096):
        made = bench.pool.reserve(key(number), parent, PAGE, tenant="red")
        assert isinstance(made, Chunk)
        bench.pool.commit(made, hashed(number))
        parent = key(number) if number % 8 else None
    looked: list[ChunkKey] = []
    score = bench.pool.values.score
    bench.pool.values.score = lambda key: looked.append(key) or score(key)  # type: ignore[method-assign,func-returns-value]
    for number in range(20_000, 20_100):
        assert isinstance(bench.put(number, "red"), Chunk)
    assert (bench.pages("red"), bench.pages("blue")) == (2096, 2000)
    assert len(looked) <= 100 * 16
    kept = {chunk.key for chunk in bench.pool.ready_chunks()}
    assert all(chunk.parent is None or chunk.parent in kept for chunk in bench.pool.ready_chunks()), "leaves went first"


def test_weights_of_the_configuration_count_also_for_who_is_away() -> None:
    bench = Bench({"red": 3.0, "blue": 1.0})
    assert bench.tenants.share_bytes("red") == 12 * PAGE
    assert bench.tenants.held_bytes_max("blue") == 4 * PAGE
    bench.tenants.engine_connected("user-7")
    assert bench.tenants.share_bytes("user-7") == 16 * PAGE // 5
    assert bench.tenants.share_bytes("user-8") == 0, "neither named nor connected"


def test_nobody_holds_all_of_the_pool() -> None:
    bench = Bench()
    bench.tenants.engine_connected("red")
    reserved = [bench.pool.reserve(key(number), None, PAGE, tenant="red") for number in range(16)]
    assert sum(isinstance(one, Chunk) for one in reserved) == 16 * HELD_SHARE_MAX
    assert bench.tenants.refused_count["red"] == 2
    bench.tenants.engine_connected("blue")
    assert [isinstance(bench.put(number, "blue"), Chunk) for number in range(20, 24)] == [True] * 4, "in turns"
    for one in reserved:
        if isinstance(one, Chunk):
            bench.pool.abort(one)
    assert bench.tenants.held_bytes["red"] == 0


def test_what_nobody_asked_for_goes_first_and_belongs_to_who_asks() -> None:
    bench = Bench()
    for tenant in ("red", "blue"):
        bench.tenants.engine_connected(tenant)
    for number in range(8):
        bench.put(number, NOBODY)
    for number in range(10, 14):
        bench.put(number, "red")
        bench.put(number + 10, "blue")
    wanted = bench.pool.find(key(3))
    assert wanted is not None
    assert bench.pool.lend(wanted, "blue")
    assert (wanted.tenant, bench.pages("blue")) == ("blue", 5)
    for number in range(30, 33):
        bench.put(number, "red")
    assert (bench.pages(NOBODY), bench.pages("red"), bench.pages("blue")) == (4, 7, 5)
    assert bench.pool.find(key(3)) is wanted


def test_pins_and_leases_count_once_and_as_long_as_they_last() -> None:
    bench = Bench()
    bench.tenants.engine_connected("red")
    chunks = [bench.put(number, "red") for number in range(16)]
    lent = [chunk for chunk in chunks if isinstance(chunk, Chunk) and _take(bench.pool, chunk)]
    assert len(lent) == 14
    assert _take(bench.pool, lent[0]), "one more pin of what is held already costs nothing"
    bench.pool.unpin(lent[0])
    bench.pool.unpin(lent[0])
    assert bench.tenants.held_bytes["red"] == 13 * PAGE
    for chunk in lent[1:]:
        bench.pool.drop(chunk.key)
        bench.pool.unpin(chunk)
    assert (bench.tenants.held_bytes["red"], bench.pages("red")) == (0, 3)


def _take(pool: ChunkPool, chunk: Chunk) -> bool:
    if not pool.lend(chunk, "red"):
        return False
    pool.pin(chunk)
    return True


@pytest.mark.parametrize("spared_max", [0, 64], ids=["by turns", "by value"])
@pytest.mark.parametrize("seed", range(3))
def test_the_books_add_up_whatever_happens(seed: int, spared_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "SPARED_MAX", spared_max)
    chooser = random.Random(seed)
    bench = Bench({"red": 2.0})
    for tenant in ("red", "blue", "green"):
        bench.tenants.engine_connected(tenant)
    filling: list[Chunk] = []
    pinned: list[Chunk] = []
    everything: set[Chunk] = set()
    for _ in range(2000):
        match chooser.randrange(6):
            case 0 | 1:
                made = bench.pool.reserve(
                    key(chooser.randrange(40)),
                    None,
                    PAGE * chooser.randrange(1, 4),
                    tenant=chooser.choice(["red", "blue", "green", NOBODY]),
                )
                if isinstance(made, Chunk):
                    filling.append(made)
                    everything.add(made)
            case 2 if filling:
                bench.pool.commit(filling.pop(chooser.randrange(len(filling))), hashed(1))
            case 3 if filling:
                bench.pool.abort(filling.pop(chooser.randrange(len(filling))))
            case 4:
                chunk = bench.pool.find(key(chooser.randrange(40)))
                if chunk is not None and bench.pool.lend(chunk, "blue"):
                    bench.pool.pin(chunk)
                    pinned.append(chunk)
            case 5 if pinned:
                chunk = pinned.pop(chooser.randrange(len(pinned)))
                bench.pool.drop(chunk.key)
                bench.pool.unpin(chunk)
        alive = [chunk for chunk in everything if chunk.state.value != "gone"]
        for tenant in ("red", "blue", "green", NOBODY):
            own = [chunk for chunk in alive if chunk.tenant == tenant]
            assert bench.tenants.used_bytes[tenant] == sum(chunk.size_bytes for chunk in own)
            assert bench.tenants.held_bytes[tenant] == sum(chunk.size_bytes for chunk in own if chunk.is_held)


def test_tenants_are_named_by_user_first_and_by_group_then() -> None:
    tenancy = Tenancy(
        {"red": TenantTerms(users=frozenset({1000})), "blue": TenantTerms(groups=frozenset({50}), connections_max=3)}
    )
    assert tenancy.tenant_of(Peer(1, 1000, frozenset({50}))) == "red"
    assert tenancy.tenant_of(Peer(1, 1001, frozenset({5, 50}))) == "blue"
    assert tenancy.tenant_of(Peer(1, 1002, frozenset({5}))) == "user-1002"
    assert tenancy.connections_max("blue") == 3


def test_a_pace_lets_a_burst_through_and_then_so_many_a_second() -> None:
    pace = Pace(100.0)
    now_s, handled = 5.0, 0
    while now_s < 7.0:
        wait_s = pace.wait_s(now_s)
        handled += wait_s == 0.0
        now_s += wait_s
    assert handled == pytest.approx(210, abs=2)
    assert pace.delayed_count == pytest.approx(200, abs=2)
    assert Pace(0.0).wait_s(1.0) == 0.0


def test_the_configuration_names_tenants() -> None:
    config = parse(
        {
            "data": {"address": "10.0.0.1"},
            "tenants": {"red": {"users": [1000], "weight": 2, "requests_per_s": 50}, "blue": {"groups": ["root"]}},
        }
    )
    assert config.tenants["red"] == TenantTerms(frozenset({1000}), weight=2.0, requests_per_s=50.0)
    assert config.tenants["blue"].groups == {0}


@pytest.mark.parametrize(
    ("tenants", "complaint"),
    [
        ({"red": {}}, "tenants.red: it has no members: set users or groups"),
        ({"red!": {"users": [1]}}, "'red!' is not a name"),
        ({"red": {"users": [1], "weight": 0}}, "tenants.red.weight"),
        ({"red": {"users": ["no such user"]}}, "this machine has no user"),
        ({"red": {"users": [1], "colour": 1}}, "unknown key 'tenants.red.colour'"),
    ],
)
def test_what_is_no_tenant_is_refused(tenants: object, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse({"data": {"address": "10.0.0.1"}, "tenants": tenants})
