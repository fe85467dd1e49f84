"""The L2 plugin with LMCache's own types, event descriptors and conformance benchmark, on real agents."""

from __future__ import annotations

import enum
import hashlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lmcache")

from lmcache.v1.distributed import api
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters.factory import create_l2_adapter_from_registry
from lmcache.v1.distributed.l2_adapters.plugin_l2_adapter import PluginL2AdapterConfig

from kvclient.engines.lmcache.second_level import KvcastL2
from kvclient.engines.settings import SettingsError
from tests.contracts.engine_store.contract import CHUNK_BYTES, Bench, Driver, EngineStoreContract, content_of
from tests.engines.installed_interface import assert_has_all
from tests.engines.lmcache_server import plugin
from tests.unit.hostagent.agent_harness import cluster

ANSWER_S = 30.0


@dataclass
class Memory:
    """What the adapter uses of LMCache's memory objects."""

    byte_array: memoryview


def object_key(number: int, model: str = "m", **changes: Any) -> ObjectKey:
    facts = {"chunk_hash": hashlib.sha256(b"%d" % number).digest(), "model_name": model, "kv_rank": 0}
    return ObjectKey(**{**facts, **changes})


class L2Driver:
    """The adapter as LMCache's controllers drive it: submit, wait for the descriptor, ask for the result."""

    def __init__(self, socket: str, model: str, **settings: Any) -> None:
        self.model = model
        self.adapter = KvcastL2(plugin(socket, **settings)["adapter_params"])

    @staticmethod
    def await_event(descriptor: int) -> None:
        assert select.select([descriptor], [], [], ANSWER_S)[0], "no task has ended"
        os.read(descriptor, 8)

    def keys(self, numbers: list[int]) -> list[ObjectKey]:
        return [object_key(number, self.model) for number in numbers]

    def put(self, numbers: list[int]) -> list[bool]:
        """One task for each: LMCache is told of the task as a whole."""
        done = []
        for number in numbers:
            memory = Memory(memoryview(content_of(number, self.model)))
            task = self.adapter.submit_store_task(self.keys([number]), [memory])
            self.await_event(self.adapter.get_store_event_fd())
            done.append(self.adapter.pop_completed_store_tasks()[task].is_successful())
        return done

    def lock(self, numbers: list[int]) -> list[bool]:
        task = self.adapter.submit_lookup_and_lock_task(self.keys(numbers), {})
        self.await_event(self.adapter.get_lookup_and_lock_event_fd())
        found = self.adapter.query_lookup_and_lock_result(task)
        assert self.adapter.query_lookup_and_lock_result(task) is None, "once"
        return [found.test(place) for place in range(len(numbers))]

    def exists(self, number: int) -> bool:
        (found,) = self.lock([number])
        self.adapter.submit_unlock(self.keys([number]))
        return found

    def load(self, numbers: list[int]) -> list[bytes | None]:
        into = [bytearray(CHUNK_BYTES) for _ in numbers]
        task = self.adapter.submit_load_task(self.keys(numbers), [Memory(memoryview(one)) for one in into])
        self.await_event(self.adapter.get_load_event_fd())
        came = self.adapter.query_load_result(task)
        return [bytes(one) if came.test(place) else None for place, one in enumerate(into)]

    def close(self) -> None:
        self.adapter.close()


class TestL2(EngineStoreContract):
    @pytest.fixture
    def make_driver(self) -> Callable[[str, str], Driver]:
        return L2Driver

    def test_what_was_looked_up_stays_until_it_is_unlocked(self, bench: Bench) -> None:
        driver = bench.driver(0)
        assert isinstance(driver, L2Driver)
        bench.driver(1).put([1, 2])
        bench.publish()
        locks = bench.agents.agents[0].core.engines.locks
        assert driver.lock([1, 9, 2]) == [True, False, True]
        assert locks.count == 2, "brought, and locked"
        driver.adapter.delete(driver.keys([1]))
        driver.adapter.submit_unlock(driver.keys([1, 9, 2]))
        bench.agents.until(lambda: locks.count == 0)
        assert driver.load([1, 2]) == [content_of(1), content_of(2)], "what was locked was not deleted"
        driver.adapter.delete(driver.keys([1]))
        assert driver.lock([2]) == [True]

    def test_salts_ranks_and_groups_separate(self, bench: Bench) -> None:
        driver = bench.driver()
        assert isinstance(driver, L2Driver)
        driver.put([1])
        others = [object_key(1, cache_salt="a"), object_key(1, kv_rank=1), object_key(1, object_group_id=1)]
        task = driver.adapter.submit_lookup_and_lock_task([*others, object_key(1)], {})
        driver.await_event(driver.adapter.get_lookup_and_lock_event_fd())
        found = driver.adapter.query_lookup_and_lock_result(task)
        assert [found.test(place) for place in range(4)] == [False, False, False, True]


@pytest.fixture
def socket() -> Iterator[str]:
    with cluster(1, pool_bytes=64 << 20) as agents:
        yield agents.agents[0].config.api_socket


def test_a_model_without_weights_shares_nothing(socket: str, caplog: pytest.LogCaptureFixture) -> None:
    driver = L2Driver(socket, "org/no-such-model", weights_digest="")
    try:
        assert (driver.put([1]), driver.exists(1), driver.load([1])) == ([False], False, [None])
    finally:
        driver.close()
    assert "set weights_digest" in caplog.text


def test_the_weights_of_a_model_on_this_machine_count(socket: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for weights, found in ((b"a", False), (b"b", False), (b"a", True)):
        (model / "model.safetensors").write_bytes(weights)
        driver = L2Driver(socket, str(model), weights_digest="")
        try:
            assert driver.exists(1) is found, weights
            driver.put([1])
        finally:
            driver.close()


def test_newer_lmcaches_learn_where_the_bytes_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 0.5.7 on they ask, and an adapter that cannot answer cannot be made. Releases before it lack the names."""
    segments = enum.Enum("MemorySegment", "DRAM STORAGE")
    residencies = enum.Enum("MemoryResidency", "LOCAL REMOTE")
    for name, standin in (("MemorySegment", segments), ("MemoryResidency", residencies)):
        if not hasattr(api, name):
            monkeypatch.setattr(api, name, standin, raising=False)
    if not hasattr(api, "MemoryTags"):
        monkeypatch.setattr(api, "MemoryTags", lambda *tags: tags, raising=False)
    tags = KvcastL2.get_memory_tags(object.__new__(KvcastL2))
    assert tags == api.MemoryTags(api.MemorySegment.DRAM, api.MemoryResidency.REMOTE)
    assert not KvcastL2.__abstractmethods__


def test_unknown_parameters_are_refused(socket: str) -> None:
    spec = plugin(socket, sockets="/x")
    with pytest.raises((SettingsError, RuntimeError), match="unknown setting 'sockets'"):
        create_l2_adapter_from_registry(PluginL2AdapterConfig.from_dict(spec), None)


def test_lmcaches_own_conformance_benchmark(socket: str) -> None:
    """Stores, looks up and loads by way of LMCache's factory, and compares every byte."""
    lmcache = Path(sys.executable).with_name("lmcache")
    run = subprocess.run(
        [
            *(lmcache, "bench", "l2", "--l2-adapter", json.dumps(plugin(socket)), "--no-skip-verify"),
            *("--num-keys", "16", "--data-size-kb", "64", "--rounds", "2", "--lookup-max-hit-rate", "0.5"),
            *("--format", "json"),
        ],
        capture_output=True,
        text=True,
        timeout=200,
        env=os.environ | {"LMCACHE_DISABLE_BANNER": "1"},
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    print(run.stdout)
    assert "verif" in (run.stdout + run.stderr).lower()


def test_this_lmcache_has_all_that_kvcast_uses() -> None:
    assert_has_all("lmcache")
