"""SGLang's storage interface with its own host pools and real agents: the contract, layouts, ranks, several pools."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sglang")

import torch
from sglang.srt.environ import envs
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.storage import StorageBackendFactory
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from kvclient.engines.settings import SettingsError
from kvclient.engines.sglang.backend import KvcastHiCache
from kvclient.engines.sglang.engine_weights import EngineWeights
from tests.contracts.engine_store.contract import Bench, EngineStoreContract, content_of
from tests.engines.installed_interface import assert_has_all
from tests.engines.sglang_pools import (
    HEAD_DIM,
    HEADS,
    LAYERS,
    PAGE_TOKENS,
    HiCacheDriver,
    host_pool,
    page_hash,
    storage_config,
)
from tests.engines.sglang_weights import SmallWeights
from tests.unit.hostagent.agent_harness import cluster

LAYOUTS = ["page_first", "page_first_direct", "layer_first", "page_head"]


@pytest.mark.parametrize("layout", LAYOUTS)
class TestHiCache(EngineStoreContract):
    @pytest.fixture
    def make_driver(self, layout: str) -> Callable[[str, str], HiCacheDriver]:
        return lambda socket, model: HiCacheDriver(socket, model, layout)

    def test_a_miss_writes_nothing(self, bench: Bench, make_driver: Callable[[str, str], HiCacheDriver]) -> None:
        driver = make_driver(bench.agents.agents[0].config.api_socket, "m")
        driver.put([1])
        assert driver.load([1, 2]) == [content_of(1), None]
        assert not any(driver.read(1))
        driver.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    with cluster(1) as agents:
        made = Bench(agents, HiCacheDriver)
        yield made
        made.close()


@pytest.fixture
def socket(bench: Bench) -> str:
    return bench.agents.agents[0].config.api_socket


@pytest.fixture
def make(socket: str) -> Iterator[Callable[..., HiCacheDriver]]:
    made: list[HiCacheDriver] = []

    def begin(model: str = "m", **changes: Any) -> HiCacheDriver:
        made.append(HiCacheDriver(socket, model, **changes))
        return made[-1]

    yield begin
    for driver in made:
        driver.close()


def test_layouts_with_the_same_bytes_share_and_others_do_not(make: Callable[..., HiCacheDriver]) -> None:
    make(layout="page_first_direct").put([1])
    assert make(layout="layer_first").load([1]) == [content_of(1)]
    assert not make(layout="page_first").exists(1)
    assert not make(layout="page_head").exists(1)


@pytest.mark.parametrize(
    "changes",
    [{"tp_rank": 1, "tp_size": 2}, {"tp_size": 2}, {"pp_size": 2}, {"attn_cp_size": 2}, {"dtype": torch.float16}],
    ids=str,
)
def test_what_decides_bytes_separates(make: Callable[..., HiCacheDriver], changes: dict[str, Any]) -> None:
    make().put([1])
    assert make(**changes).load([1]) == [None]


def test_ranks_with_equal_kv_share_what_their_writer_stores(make: Callable[..., HiCacheDriver]) -> None:
    make(is_mla_model=True, tp_size=2).put([1])
    assert make(is_mla_model=True, tp_size=2, tp_rank=1).load([1]) == [content_of(1)]


def test_ranks_of_different_tensor_parallel_sizes_share_by_heads(make: Callable[..., HiCacheDriver]) -> None:
    """One rank with all heads stores what two ranks with half of them load, and the other way round."""
    whole = make(layout="page_head", tp_lcm_size=2)
    halves = [make(layout="page_head", heads=HEADS // 2, tp_rank=rank, tp_size=2, tp_lcm_size=2) for rank in (0, 1)]
    whole.put([1])
    for half in halves:
        assert half.backend.batch_get_v1([page_hash(1)], half.indices(1)) == [True]
    together = torch.cat([half.page(0) for half in halves], dim=3)
    assert torch.equal(together.view(torch.int16), whole.page(0).contiguous().view(torch.int16))
    for rank, half in enumerate(halves):
        half.page(0)
        half.pool.kv_buffer.fill_(rank + 1)
        half.backend.batch_set_v1([page_hash(2)], half.indices(1))
    assert whole.exists(2)
    assert whole.backend.batch_get_v1([page_hash(2)], whole.indices(1)) == [True]
    page = whole.page(0)
    assert page.shape == (2, LAYERS, PAGE_TOKENS, HEADS, HEAD_DIM)
    assert torch.equal(page[..., : HEADS // 2, :], torch.ones_like(page[..., : HEADS // 2, :]))
    assert torch.equal(page[..., HEADS // 2 :, :], 2 * torch.ones_like(page[..., HEADS // 2 :, :]))


def test_pages_know_what_comes_before_them(bench: Bench, make: Callable[..., HiCacheDriver]) -> None:
    make().put(list(range(12)))
    chunks = bench.agents.agents[0].core.pool.ready_chunks()
    assert [chunk.position for chunk in chunks] == list(range(12))
    assert [chunk.parent for chunk in chunks] == [None, *(chunk.key for chunk in chunks[:-1])]


def test_an_incomplete_prefix_counts_as_far_as_it_leads(make: Callable[..., HiCacheDriver]) -> None:
    driver = make()
    driver.put([0, 1])
    driver.put([3])
    assert driver.backend.batch_exists([page_hash(number) for number in range(5)]) == 2


def test_pages_as_flat_tensors(make: Callable[..., HiCacheDriver]) -> None:
    """The interface that SGLang uses without `interface_v1`."""
    driver = make()
    pages = [torch.arange(100, dtype=torch.float32) + number for number in range(2)]
    assert driver.backend.batch_set([page_hash(1), page_hash(2)], pages)
    assert driver.backend.set(page_hash(3), pages[0])
    got = driver.backend.batch_get([page_hash(2), page_hash(9), page_hash(3)], [torch.empty(100) for _ in range(3)])
    assert torch.equal(got[0], pages[1])
    assert got[1] is None
    assert torch.equal(driver.backend.get(page_hash(1), torch.empty(100)), pages[0])
    assert torch.equal(got[2], pages[0])


def test_several_pools(make: Callable[..., HiCacheDriver]) -> None:
    driver = make()
    indexer, state = host_pool("page_first_direct"), host_pool("layer_first")
    driver.backend.register_mem_host_pool_v2(driver.pool, PoolName.KV)
    driver.backend.register_mem_host_pool_v2(indexer, PoolName.INDEXER)
    driver.backend.register_mem_host_pool_v2(state, PoolName.MAMBA)
    pages = [page_hash(number) for number in range(4)]
    driver.put([0, 1, 2, 3])
    every = PoolTransfer(PoolName.INDEXER, driver.indices(3), keys=pages[:3])
    last = PoolTransfer(PoolName.MAMBA, driver.indices(1), keys=pages[1:2], hit_policy=PoolHitPolicy.TRAILING_PAGES)
    indexer.kv_buffer.fill_(3)
    assert driver.backend.batch_set_v2([every, last]) == {PoolName.INDEXER: [True] * 3, PoolName.MAMBA: [True]}
    found = driver.backend.batch_exists_v2(pages, [every, last])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (2, [2])
    assert found.extra_pool_hit_pages == {"kv": 4, "indexer": 3, "mamba": 2}
    indexer.kv_buffer.zero_()
    wanted = PoolTransfer(PoolName.INDEXER, driver.indices(4), keys=pages)
    assert driver.backend.batch_get_v2([wanted]) == {PoolName.INDEXER: [True, True, True, False]}
    assert indexer.get_data_page(0).eq(3).all()
    assert indexer.get_data_page(3 * PAGE_TOKENS).eq(0).all()
    short = PoolTransfer(PoolName.INDEXER, driver.indices(1), keys=pages)
    unknown = PoolTransfer(PoolName.SWA, driver.indices(4), keys=pages)
    assert driver.backend.batch_get_v2([short, unknown]) == {PoolName.INDEXER: [False] * 4, PoolName.SWA: [False] * 4}


def test_loaded_by_sglangs_factory_under_its_injected_failures(socket: str) -> None:
    extra = {
        "backend_name": "kvcast",
        "module_path": "kvclient.engines.sglang.backend",
        "class_name": "KvcastHiCache",
        "interface_v1": 1,
        "kvcast": {"socket": socket, "weights_digest": "w"},
    }
    pool = host_pool("page_first_direct")
    with envs.SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE.override(0.5):
        backend = StorageBackendFactory.create_backend("dynamic", storage_config(extra_config=extra), pool)
    backend.register_mem_pool_host(pool)
    pages = [page_hash(number) for number in range(8)]
    indices = torch.arange(8 * PAGE_TOKENS)
    for _ in range(20):
        backend.batch_set_v1(pages, indices)
        assert backend.batch_exists(pages) in range(9)
        assert len(backend.batch_get_v1(pages, indices)) == 8
    backend.close()


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"sockets": "/x"}, "unknown setting 'sockets'"), ({"socket": "/x"}, "set weights_digest")],
)
def test_bad_settings_are_refused_at_the_start(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        KvcastHiCache(storage_config("no-such-model", extra_config={"kvcast": settings}), {})


def test_other_weights_have_other_pages(make: Callable[..., HiCacheDriver]) -> None:
    driver = make()
    driver.put([1])
    driver.weights.update(2.0)
    assert not driver.exists(1)
    driver.put([2])
    driver.weights.update(1.0)
    assert (driver.exists(1), driver.exists(2)) == (True, False)


def test_the_same_update_elsewhere_shares(make: Callable[..., HiCacheDriver]) -> None:
    first, second = make(), make()
    first.weights.update(2.0)
    first.put([1])
    second.weights.update(2.0)
    assert second.load([1]) == [content_of(1)]


def test_the_callers_version_names_an_update_and_no_other(make: Callable[..., HiCacheDriver]) -> None:
    driver = make()
    driver.weights.update(2.0, version="step 1")
    assert driver.weights.seen.name() == "version=step 1"
    driver.weights.update(2.0)
    driver.weights.flush()
    assert driver.weights.seen.name() == "version=step 1", "nothing has changed"
    driver.put([1])
    driver.weights.update(3.0)
    assert str(driver.weights.seen.name()).startswith("checksum="), "no name was given"
    driver.weights.update(4.0, version="step 1")
    assert not driver.exists(1), "the name stands for other weights"
    driver.weights.update(2.0, version="step 1")
    assert driver.exists(1)
    driver.weights.change(5.0)
    driver.weights.flush()
    assert str(driver.weights.seen.name()).startswith("checksum="), "nobody told of a change"


def test_an_update_that_failed_in_part_has_no_version(make: Callable[..., HiCacheDriver]) -> None:
    """Neither on the rank where it failed, nor on those that compute with what it gives them."""
    weights = make().weights
    weights.update(2.0, version="step 1", fails=True)
    assert str(weights.seen.name()).startswith("checksum=")
    weights.update(2.0, version="step 1")
    assert weights.seen.name() == "version=step 1"
    one = SmallWeights(lambda own: [own, "" if own == "step 1" else own])
    one.seen.backend_attached()
    one.update(2.0, version="step 1")
    assert str(one.seen.name()).startswith("checksum="), "the other rank's part failed"


def test_nothing_has_a_name_while_the_engine_may_keep_kv_of_before(
    make: Callable[..., HiCacheDriver], caplog: pytest.LogCaptureFixture
) -> None:
    driver = make()
    driver.put([1])
    driver.weights.update(2.0, flushes=False)
    assert not driver.exists(1)
    assert driver.put([2]) == [False]
    assert "until flush_cache is called" in caplog.text
    driver.weights.flush()
    assert driver.put([2]) == [True]


def test_steps_between_a_flush_and_the_end_of_an_update_leave_kv_of_before(make: Callable[..., HiCacheDriver]) -> None:
    driver = make()
    weights = driver.weights
    weights.seen.weights_may_change()
    weights.flush()
    weights.steps += 1
    weights.change(2.0)
    weights.seen.weights_settled(weights.steps)
    assert driver.put([1]) == [False]


def test_a_change_that_nobody_told_of_is_noticed_by_a_flush(make: Callable[..., HiCacheDriver]) -> None:
    driver = make()
    driver.put([1])
    driver.weights.change(2.0)
    driver.weights.flush()
    assert not driver.exists(1)


def test_without_the_plugin_nothing_is_shared(socket: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody would tell of updates."""
    config = storage_config(extra_config={"kvcast": {"socket": socket, "weights_digest": "w"}})
    backend = KvcastHiCache(config, {}, EngineWeights())
    backend.register_mem_pool_host(host_pool("layer_first"))
    assert not backend.exists(page_hash(1))
    assert "SGLANG_PLUGINS" in caplog.text
    backend.close()


def test_this_sglang_has_all_that_kvcast_uses() -> None:
    assert_has_all("sglang")


class AskedCache(UnifiedRadixCache):
    """Of SGLang's cache what looks at a request whose pages are on their way; it counts votes and holds none."""

    def __init__(self, policy: str) -> None:
        self.prefetch_stop_policy = policy
        self.pp_rank = 0
        self._votes = 0

    def votes_on_waiting(self) -> int:
        self._can_terminate_prefetch(SimpleNamespace())
        return self._votes

    def _prefetch_deadline_expired(self, operation: Any) -> bool:
        return False

    def _all_reduce(self, *arguments: Any) -> None:
        self._votes += 1


@pytest.mark.parametrize(("policy", "votes"), [("wait_complete", 0), ("best_effort", 0), ("timeout", 1)])
def test_only_one_policy_makes_ranks_vote_on_a_waiting_request(policy: str, votes: int) -> None:
    """Which ranks that differ would never end; docs/how-to/sglang.md says so."""
    assert AskedCache(policy).votes_on_waiting() == votes
