"""kvcast as a store of UCM, made by UCM's own factory, beside the store that UCM brings itself (its Posix pipeline).

UCM's wheel is built for CUDA. Its stores and their interface run without a GPU; torch, which the interface names in its
types, is stood in for (`standins/ucm`).
"""

from __future__ import annotations

import ast
import importlib.util
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

pytest.importorskip("ucm")

from ucm.store.factory_v1 import UcmConnectorFactoryV1
from ucm.store.pipeline.errors import StoreNotFoundError, StoreUnhealthyError

from kvclient.engines.settings import SettingsError
from kvclient.engines.ucm.ucm_store import KvcastStore
from tests.contracts.engine_store.contract import (
    CHUNK_BYTES,
    PIECE_BYTES,
    PIECES,
    Bench,
    Driver,
    EngineStoreContract,
    content_of,
)
from tests.engines.installed_interface import assert_has_all
from tests.field.pages import blocks
from tests.unit.hostagent.agent_harness import cluster

SHARDS = 3
PAGE = Path(__file__).parents[2] / "docs/how-to/ucm.md"


def kvcast_settings(socket: str, weights: str = "w", **more: Any) -> dict[str, Any]:
    return {"socket": socket, "weights_digest": weights, "load_deadline_s": 5, **more}


def sizes(shards: int = 1) -> dict[str, Any]:
    """What UCM's connector adds for a worker: sizes in bytes, a shard padded to whole pages of a disk."""
    return {"tensor_size_list": [PIECE_BYTES] * PIECES, "shard_size": CHUNK_BYTES, "block_size": shards * CHUNK_BYTES}


def make_store(socket: str, weights: str = "w", **more: Any) -> KvcastStore:
    """By UCM's factory, as `ucm_connector_name` and `ucm_connector_module_path` name it."""
    config = {"kvcast": kvcast_settings(socket, weights), "unique_id": "u", "share_buffer_enable": False, **more}
    store = UcmConnectorFactoryV1.create_connector("KvcastStore", config, "kvclient.engines.ucm.ucm_store")
    assert isinstance(store, KvcastStore)
    return store


def test_ucms_workers_in_vllm_refuse_processors() -> None:
    """Before they make a store. Once they do not, vLLM with UCM can be tried here; vLLM is not, so this reads."""
    (ucm,) = importlib.util.find_spec("ucm").submodule_search_locations  # type: ignore[union-attr]
    source = ast.parse((Path(ucm) / "integration/vllm/device.py").read_text())
    (asks,) = (
        one for one in ast.walk(source) if isinstance(one, ast.FunctionDef) and one.name == "get_current_device_id"
    )
    assert isinstance(asks.body[-1], ast.Raise)
    assert "Unsupported device platform" in ast.unparse(asks.body[-1])


def test_the_configuration_of_the_page_makes_a_store(tmp_path: Path) -> None:
    (block,) = (one for one in blocks(PAGE) if "ucm_connectors" in one.text)
    (connector,) = yaml.safe_load(block.text)["ucm_connectors"]
    config = connector["ucm_connector_config"]
    assert set(config) == {"kvcast"}
    with cluster(1, pool_bytes=1 << 20) as agents:
        config["kvcast"]["socket"] = agents.agents[0].config.api_socket
        name, module = connector["ucm_connector_name"], connector["ucm_connector_module_path"]
        store = UcmConnectorFactoryV1.create_connector(name, config | sizes(), module)
        try:
            dump(store, [1], [0], [content_of(1)])
            assert store.lookup([block_id(1), block_id(2)]) == [True, False]
        finally:
            store.close()


def block_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


class Memory:
    """An engine's: a row of separate runs of bytes for each shard."""

    def __init__(self, contents: list[bytes]) -> None:
        self._runs = [
            [np.frombuffer(one[at : at + PIECE_BYTES], np.uint8).copy() for at in range(0, len(one), PIECE_BYTES)]
            for one in contents
        ]
        self.addresses = np.array([[run.ctypes.data for run in row] for row in self._runs], dtype=np.uint64)

    def contents(self) -> list[bytes]:
        return [b"".join(run.tobytes() for run in row) for row in self._runs]


def empty(count: int) -> Memory:
    return Memory([bytes(CHUNK_BYTES)] * count)


def dump(store: Any, numbers: list[int], shards: list[int], contents: list[bytes]) -> None:
    """And wait, with the memory there until the end."""
    memory = Memory(contents)
    store.wait(store.dump_data([block_id(number) for number in numbers], shards, memory.addresses))


class UcmDriver:
    """A scheduler's store, which looks up, and a worker's, which loads and dumps."""

    def __init__(self, socket: str, model: str) -> None:
        self.model = model
        self.scheduler = make_store(socket, model)
        self.worker = make_store(socket, model, device_id=0, **sizes())

    def put(self, numbers: list[int]) -> list[bool]:
        """One task for each: UCM is told of the task as a whole."""
        return [self._dumped(number) for number in numbers]

    def _dumped(self, number: int) -> bool:
        try:
            dump(self.worker, [number], [0], [content_of(number, self.model)])
        except RuntimeError:
            return False
        return True

    def exists(self, number: int) -> bool:
        return self.scheduler.lookup([block_id(number)])[0]

    def load(self, numbers: list[int]) -> list[bytes | None]:
        tasks = [(empty(1), number) for number in numbers]
        begun = [(self.worker.load_data([block_id(number)], [0], into.addresses), into) for into, number in tasks]
        return [self._loaded(task, into) for task, into in begun]

    def _loaded(self, task: Any, into: Memory) -> bytes | None:
        try:
            self.worker.wait(task)
        except StoreNotFoundError:
            return None
        assert self.worker.check(task)
        return into.contents()[0]

    def close(self) -> None:
        self.scheduler.close()
        self.worker.close()


class TestUcm(EngineStoreContract):
    @pytest.fixture
    def make_driver(self) -> Callable[[str, str], Driver]:
        return UcmDriver

    def test_a_load_that_misses_one_block_fails_as_a_whole(self, bench: Bench) -> None:
        driver = bench.driver()
        assert isinstance(driver, UcmDriver)
        driver.put([1])
        into = empty(2)
        task = driver.worker.load_data([block_id(1), block_id(2)], [0, 0], into.addresses)
        with pytest.raises(StoreNotFoundError, match="1 of 2"):
            driver.worker.wait(task)

    def test_a_dump_without_an_agent_is_told_apart(self, bench: Bench) -> None:
        driver = bench.driver(1)
        assert isinstance(driver, UcmDriver)
        bench.stop_last()
        with pytest.raises(StoreUnhealthyError, match="no agent"):
            dump(driver.worker, [1], [0], [content_of(1)])

    def test_prefetch_brings_blocks_to_this_node(self, bench: Bench) -> None:
        here, there = bench.driver(0), bench.driver(1)
        assert isinstance(here, UcmDriver)
        there.put([1, 2])
        bench.publish()
        pool = bench.agents.agents[0].core.pool
        here.scheduler.prefetch([block_id(1), block_id(2), block_id(3)])
        bench.agents.until(lambda: len(pool.ready_chunks()) == 2)
        assert here.load([2, 3, 1]) == [content_of(2), None, content_of(1)]


class TestShards:
    """Blocks in several shards, as where UCM works layer by layer."""

    @pytest.fixture
    def stores(self) -> Iterator[tuple[KvcastStore, KvcastStore]]:
        """Scheduler's and worker's."""
        with cluster(1, pool_bytes=16 << 20) as agents:
            socket = agents.agents[0].config.api_socket
            made = make_store(socket), make_store(socket, device_id=0, **sizes(SHARDS))
            yield made
            for store in made:
                store.close()

    def test_a_block_is_there_when_all_its_shards_are(self, stores: tuple[KvcastStore, KvcastStore]) -> None:
        scheduler, worker = stores
        contents = [content_of(shard) for shard in range(SHARDS)]
        for shard in range(SHARDS):
            assert scheduler.lookup([block_id(1)]) == worker.lookup([block_id(1)]) == [False]
            dump(worker, [1], [shard], [contents[shard]])
        assert scheduler.lookup([block_id(1)]) == worker.lookup([block_id(1)]) == [True]
        into = empty(SHARDS)
        worker.wait(worker.load_data([block_id(1)] * SHARDS, [2, 0, 1], into.addresses))
        assert into.contents() == [contents[2], contents[0], contents[1]]

    def test_a_last_shard_alone_is_not_stored(self, stores: tuple[KvcastStore, KvcastStore]) -> None:
        scheduler, worker = stores
        dump(worker, [1], [0], [content_of(0)])
        with pytest.raises(RuntimeError, match="had room for 0 of 1 shards"):
            dump(worker, [1], [SHARDS - 1], [content_of(2)])
        assert scheduler.lookup([block_id(1)]) == [False]

    def test_all_shards_may_come_in_one_dump(self, stores: tuple[KvcastStore, KvcastStore]) -> None:
        scheduler, worker = stores
        dump(worker, [7] * SHARDS, [2, 1, 0], [content_of(shard) for shard in range(SHARDS)])
        assert scheduler.lookup_on_prefix([block_id(7), block_id(8)]) == 0

    def test_slots_without_an_address_are_left_out(self, stores: tuple[KvcastStore, KvcastStore]) -> None:
        _, worker = stores
        memory, into = Memory([content_of(1)]), empty(1)
        for one in (memory, into):
            one.addresses[0][2] = 0
        worker.wait(worker.dump_data([block_id(1)], [0], memory.addresses))
        worker.wait(worker.load_data([block_id(1)], [0], into.addresses))
        expected = bytearray(content_of(1))
        expected[2 * PIECE_BYTES : 3 * PIECE_BYTES] = bytes(PIECE_BYTES)
        assert into.contents() == [bytes(expected)]

    def test_rows_that_do_not_fit_are_refused(self, stores: tuple[KvcastStore, KvcastStore]) -> None:
        _, worker = stores
        memory = Memory([content_of(1)])
        with pytest.raises(ValueError, match="1 rows of addresses for 2 shards"):
            worker.load_data([block_id(1)] * 2, [0, 1], memory.addresses)
        with pytest.raises(ValueError, match="5 addresses for a shard of 6"):
            worker.dump_data([block_id(1)], [0], memory.addresses[:, :5])
        with pytest.raises(ValueError, match="blocks with 3"):
            worker.load_data([block_id(1)], [SHARDS], memory.addresses)
        with pytest.raises(ValueError, match="events of a device"):
            worker.dump_data([block_id(1)], [0], memory.addresses, prerequisite_handle=1)


class TestBesideUcmsOwn:
    """The same steps, as UCM's embedding tests of its stores take them, on its Posix pipeline and on kvcast."""

    @pytest.fixture(params=["UcmPipelineStore", "KvcastStore"])
    def stores(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, Any]]:
        """Scheduler's and worker's."""
        with cluster(1, pool_bytes=16 << 20) as agents:
            shared = {
                "store_pipeline": "Posix",
                "storage_backends": [str(tmp_path)],
                "io_direct": False,
                "unique_id": "u",
                "share_buffer_enable": False,
                "worker_number": 1,
                "stream_number": 4,
                "timeout_ms": 10000,
                "tensor_size": PIECE_BYTES,
                **sizes(),
            }
            module = None
            if request.param == "KvcastStore":
                module = "kvclient.engines.ucm.ucm_store"
                shared["kvcast"] = kvcast_settings(agents.agents[0].config.api_socket)
            made = [
                UcmConnectorFactoryV1.create_connector(request.param, {**shared, "device_id": device}, module)
                for device in (-1, 0)
            ]
            yield made[0], made[1]
            for store in made:
                if isinstance(store, KvcastStore):
                    store.close()

    def test_lookups_dumps_and_loads(self, stores: tuple[Any, Any]) -> None:
        scheduler, worker = stores
        for batch in range(3):
            ids = [random.Random(f"{batch}:{place}").randbytes(16) for place in range(8)]
            assert not any(scheduler.lookup(ids))
            assert (scheduler.lookup_on_prefix(ids), scheduler.lookup_on_reverse(ids)) == (-1, -1)
            memory, into = Memory([content_of(place) for place in range(8)]), empty(8)
            worker.wait(worker.dump_data(ids, [0] * 8, memory.addresses))
            assert list(scheduler.lookup(ids)) == [True] * 8
            strange = random.Random(f"{batch}:none").randbytes(16)
            with_hole = [*ids[:5], strange, *ids[5:]]
            assert list(scheduler.lookup(with_hole)) == [True] * 5 + [False] + [True] * 3
            assert scheduler.lookup_on_prefix(with_hole) == 4
            assert scheduler.lookup_on_reverse([*with_hole, strange]) == 8
            worker.wait(worker.load_data(ids, [0] * 8, into.addresses))
            assert into.contents() == memory.contents()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kvcast": {"socket": "/x"}}, "set weights_digest"),
        ({"kvcast": {"sockets": "/x"}}, "unknown setting 'sockets'"),
        ({"kvcast": []}, "must be an object"),
        ({"shard_size": 100, "block_size": 250}, "not a multiple"),
        ({"shard_size": 100, "block_size": 100, "tensor_size_list": [99, 2]}, "more than its shard_size"),
    ],
)
def test_bad_configurations_are_refused(changes: dict[str, Any], says: str) -> None:
    config = {"kvcast": {"socket": "/nowhere", "weights_digest": "w"}, **changes}
    with pytest.raises(SettingsError, match=says):
        UcmConnectorFactoryV1.create_connector("KvcastStore", config, "kvclient.engines.ucm.ucm_store")


def test_nothing_native_stacks_on_it(tmp_path: Path) -> None:
    store = make_store(str(tmp_path / "none.sock"))
    try:
        with pytest.raises(NotImplementedError, match="native stores"):
            store.cc_store()
    finally:
        store.close()


def test_this_ucm_has_all_that_kvcast_uses() -> None:
    assert_has_all("ucm")
