"""The contract of an election by lease, on a real etcd and on a simulated API server of Kubernetes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

import pytest

from controlplane.core.election import Hold
from controlplane.core.events import Deposed, Elected, ElectionEvent
from controlplane.election.contract import LeaseStore, StatePlace, StoreUnavailableError
from controlplane.election.etcd_client import EtcdClient
from controlplane.election.etcd_store import EtcdLeaseStore, EtcdState
from controlplane.election.lease_election import LeaseElection
from tests.growth import simulated_kube_api
from tests.growth.etcd_server import EtcdServer
from tests.growth.simulated_kube_api import SimulatedKubeApi
from tests.growth.troubled_link import TroubledLink, leading_to
from tests.waiting import eventually

pytestmark = pytest.mark.growth

DEADLINE_S = 60.0
LEASE_MS = 3000


class Place(Protocol):
    """A store that trouble comes to."""

    def store(self, name: str) -> LeaseStore:
        """As this candidate reaches it."""

    def state(self) -> StatePlace:
        """Beside the lease."""

    async def go_away(self) -> None: ...

    async def come_back(self) -> None: ...

    def forget(self) -> Awaitable[None]:
        """It lost all that it had, epochs too."""

    def slow(self, delay_s: float) -> None: ...

    def spoil(self) -> Awaitable[None]:
        """Somebody else writes into it what no controller would."""


class RealEtcd:
    """Behind a link that can be slow."""

    def __init__(self, server: EtcdServer, link: TroubledLink) -> None:
        self._server = server
        self._link = link

    def store(self, name: str) -> LeaseStore:
        return EtcdLeaseStore(EtcdClient([self._link.address], None), "/test", name, LEASE_MS)

    def state(self) -> StatePlace:
        return EtcdState(EtcdClient([self._link.address], None), "/test")

    async def go_away(self) -> None:
        await asyncio.to_thread(self._server.kill)

    async def come_back(self) -> None:
        await asyncio.to_thread(self._server.start)

    async def forget(self) -> None:
        await asyncio.to_thread(self._server.wipe)

    def slow(self, delay_s: float) -> None:
        self._link.delay_s = delay_s

    async def spoil(self) -> None:
        from controlplane.election.etcd_rpc import etcd_pb2 as etcd

        client = EtcdClient([self._link.address], None)
        await client.write([], [etcd.PutRequest(key=b"/test/leader", value=b"nonsense")])
        await client.close()


class SimulatedKubernetes:
    """See `simulated_kube_api`."""

    def __init__(self, api: SimulatedKubeApi) -> None:
        self._api = api

    def store(self, name: str) -> LeaseStore:
        from controlplane.election.kubernetes_store import KubernetesLeaseStore

        return KubernetesLeaseStore("test", "kvcast", name, LEASE_MS)

    def state(self) -> StatePlace:
        from controlplane.election.kubernetes_store import KubernetesState

        return KubernetesState("test", "kvcast-state")

    async def go_away(self) -> None:
        self._api.refuses = HTTPStatus.SERVICE_UNAVAILABLE

    async def come_back(self) -> None:
        self._api.refuses = None

    async def forget(self) -> None:
        self._api.objects.clear()

    def slow(self, delay_s: float) -> None:
        self._api.delay_s = 2 * delay_s

    async def spoil(self) -> None:
        store = self.store("somebody")
        await store.look()
        await store.take(0, None)
        await store.close()
        lease = self._api.objects["leases", "test", "kvcast"]
        lease["metadata"]["annotations"]["kvcast/epoch"] = "nonsense"


@contextlib.asynccontextmanager
async def etcd_place(folder: Path) -> AsyncIterator[Place]:
    server = EtcdServer(folder)
    await asyncio.to_thread(server.start)
    try:
        async with leading_to(server.address) as link:
            yield RealEtcd(server, link)
    finally:
        server.kill()


@contextlib.asynccontextmanager
async def kubernetes_place(folder: Path) -> AsyncIterator[Place]:
    pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed: kvcast[kubernetes]")
    with simulated_kube_api.running(folder) as (api, config), pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(config))
        yield SimulatedKubernetes(api)


@pytest.fixture(params=[etcd_place, kubernetes_place], ids=["etcd", "simulated-kubernetes"])
def on_place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """Runs a test's steps against a store."""

    def run(steps: Callable[[Place], Coroutine[Any, Any, None]]) -> None:
        async def scene() -> None:
            async with request.param(tmp_path) as place, asyncio.timeout(2 * DEADLINE_S):
                await steps(place)

        asyncio.run(scene())

    return run


@dataclass
class Standing:
    """One candidate at work, and what it was told."""

    name: str
    election: LeaseElection
    task: asyncio.Task[None] | None = None
    told: list[ElectionEvent] = field(default_factory=list)

    @property
    def epochs(self) -> list[int]:
        """Under which it has led."""
        return list(dict.fromkeys(one.epoch for one in self.told if isinstance(one, Elected)))

    @property
    def leads(self) -> bool:
        return self.election.hold is not None

    async def stand_still(self) -> None:
        """From now on it does nothing, as a process that was stopped."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@contextlib.asynccontextmanager
async def candidates(place: Place, *names: str) -> AsyncIterator[list[Standing]]:
    """They campaign in this order, the first one leads."""
    made: list[Standing] = []
    try:
        for name in names:
            one = Standing(name, LeaseElection(place.store(name), name, LEASE_MS))
            one.task = asyncio.create_task(one.election.run(one.told.append))
            made.append(one)
            await eventually(lambda: made[0].leads, "the first one leads")
        yield made
    finally:
        for one in made:
            await one.stand_still()
            await one.election.resign()


async def held(one: Standing) -> Hold:
    """What it holds, as soon as it leads."""
    await eventually(lambda: one.leads, f"{one.name} leads")
    hold = one.election.hold
    assert hold is not None
    return hold


def test_one_leads_and_who_resigns_hands_over(on_place: Callable[..., None]) -> None:
    async def steps(place: Place) -> None:
        async with candidates(place, "first", "second") as (first, second):
            await eventually(lambda: any("first" in str(one) for one in second.told), "the second knows who leads")
            assert isinstance(second.told[-1], Deposed)
            assert not second.leads
            await first.stand_still()
            await first.election.resign()
            await eventually(lambda: second.leads, "the second leads")
            assert second.epochs[0] > first.epochs[-1]

    on_place(steps)


def test_who_stands_still_is_replaced_when_its_lease_is_over(on_place: Callable[..., None]) -> None:
    async def steps(place: Place) -> None:
        async with candidates(place, "first", "second", "third") as (first, *others):
            await first.stand_still()
            await eventually(lambda: any(one.leads for one in others), "another one leads")
            assert not first.leads, "by its own clock its lease was over before"
            (leader,) = (one for one in others if one.leads)
            assert leader.epochs[0] > first.epochs[-1]
            # It wakes, and hears that it leads no longer.
            first.task = asyncio.create_task(first.election.run(first.told.append))
            await eventually(lambda: leader.name in str(first.told[-1]), "the first one knows who leads")
            assert len(first.epochs) == 1

    on_place(steps)


def test_a_leader_without_its_store_lapses_and_goes_on_when_it_is_back(
    on_place: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def steps(place: Place) -> None:
        async with candidates(place, "first", "second") as (first, second):
            await place.go_away()
            await eventually(lambda: not first.leads, "its lease is over")
            told = list(first.told)
            assert isinstance(told[-1], Elected), "nobody else is known to lead, so nobody says so"
            await place.come_back()
            await eventually(lambda: first.leads or second.leads, "one leads again")
            assert first.leads != second.leads

    on_place(steps)
    warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert 1 <= len(warned) <= 8, "a candidate says each problem once, however often it asks"


def test_a_store_that_is_slow_keeps_its_leader(on_place: Callable[..., None]) -> None:
    async def steps(place: Place) -> None:
        async with candidates(place, "first", "second") as (first, second):
            place.slow(0.05)
            before = len(first.told)
            await eventually(lambda: len(first.told) > before + 4, "several renewals")
            assert first.leads
            assert second.epochs == []

    on_place(steps)


def test_epochs_go_on_rising_when_a_store_forgets_them(on_place: Callable[..., None]) -> None:
    async def steps(place: Place) -> None:
        async with candidates(place, "first") as (first,):
            before = first.epochs[-1]
            await place.forget()
            await eventually(lambda: first.epochs[-1] > before and first.leads, "it leads anew")

    on_place(steps)


def test_only_whoever_leads_writes_what_operators_set(on_place: Callable[..., None]) -> None:
    async def steps(place: Place) -> None:
        state = place.state()
        try:
            async with candidates(place, "first", "second") as (first, second):
                assert await state.load() is None
                old = await held(first)
                await state.save(b"{}", old)
                assert await state.load() == b"{}"
                await first.stand_still()
                await first.election.resign()
                new = await held(second)
                await state.save(b'{"new": 1}', new)
                with pytest.raises(StoreUnavailableError, match="another controller leads"):
                    await state.save(b"{}", old)
                assert await state.load() == b'{"new": 1}'
                with pytest.raises(StoreUnavailableError, match="too many for it"):
                    await state.save(bytes(1_000_001), new)
        finally:
            await state.close()

    on_place(steps)


def test_what_no_controller_wrote_is_said_once_and_nobody_leads(
    on_place: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def steps(place: Place) -> None:
        await place.spoil()
        one = Standing("one", LeaseElection(place.store("one"), "one", LEASE_MS))
        one.task = asyncio.create_task(one.election.run(one.told.append))
        try:
            await eventually(lambda: "controller" in caplog.text, "it says so")
            assert not one.leads
        finally:
            await one.stand_still()
            await one.election.resign()

    on_place(steps)
    warned = [record.getMessage() for record in caplog.records if "controller" in record.getMessage()]
    assert len(warned) == 1
    assert "\n" not in warned[0]


def test_the_lease_is_one_that_kubectl_shows(tmp_path: Path) -> None:
    pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed: kvcast[kubernetes]")

    async def steps() -> None:
        with simulated_kube_api.running(tmp_path) as (api, config), pytest.MonkeyPatch.context() as patch:
            patch.setenv("KUBECONFIG", str(config))
            async with candidates(SimulatedKubernetes(api), "first") as (first,):
                lease = api.objects["leases", "test", "kvcast"]
                assert lease["spec"]["holderIdentity"] == "first"
                assert lease["spec"]["leaseDurationSeconds"] == 3
                assert lease["spec"]["leaseTransitions"] == 0
                assert int(lease["metadata"]["annotations"]["kvcast/epoch"]) == first.epochs[-1]
                assert {method for method, _ in api.requests} <= {"GET", "POST", "PUT"}
            assert api.objects["leases", "test", "kvcast"]["spec"]["holderIdentity"] in ("", None), "it was given back"
            json.dumps(api.objects["leases", "test", "kvcast"])

    asyncio.run(steps())
