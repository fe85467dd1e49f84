"""The election that the configuration names: by a store's lease, or by P4Runtime's arbitration, where whoever is the
switch's primary leads. Without a switch there is one controller.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time

from controlplane.core.events import Deposed, Elected, LeadershipDoubted
from controlplane.core.switch.target import Down, Standby, SwitchEvent, Up
from controlplane.election.contract import Election, LeaseStore, Sink, StatePlace, epoch_after
from controlplane.election.election_config import ElectionConfig, EtcdConfig, KubernetesConfig
from controlplane.election.etcd_client import EtcdClient
from controlplane.election.etcd_store import EtcdLeaseStore, EtcdState
from controlplane.election.lease_election import LeaseElection
from kvdaemon.errors import CannotRunError


class SwitchElection:
    """`Election` by the session with the switch, which the daemon keeps: it passes on what it hears there.

    A controller leads until the switch says that another one is its primary: a network whose switch is away needs a
    controller, too.
    """

    def __init__(self) -> None:
        self._epoch = 0
        self._sink: Sink | None = None

    async def run(self, sink: Sink) -> None:
        """See `Election`."""
        self._sink = sink
        self._lead("")
        await asyncio.Event().wait()

    async def resign(self) -> None:
        """See `Election`: the end of the session is the end of the leadership."""

    def switch_event(self, event: SwitchEvent) -> None:
        """What the session with the switch says."""
        if self._sink is None:
            raise AssertionError("the session with the switch began before the election")
        match event:
            case Up():
                self._lead("it is the switch's primary")
            case Standby():
                self._sink(Deposed("another one is the switch's primary"))
            case Down():
                self._sink(LeadershipDoubted())

    def _lead(self, reason: str) -> None:
        self._epoch = epoch_after(self._epoch, time.time_ns() // 1_000_000)
        if self._sink is not None:
            self._sink(Elected(self._epoch, None, reason))


class NoElection:
    """`Election` of a controller that is the only one. It has no epoch, which agents would compare: its clock may go
    back between two starts."""

    async def run(self, sink: Sink) -> None:
        """See `Election`."""
        sink(Elected(0, None, ""))
        await asyncio.Event().wait()

    async def resign(self) -> None:
        """See `Election`."""


def election_of(config: ElectionConfig, *, with_switch: bool) -> Election:
    """`with_switch`: one that arbitrates where nothing else is configured. Raises CannotRunError: what the election
    needs is not installed."""
    # Each start is another candidate: none takes its predecessor's lease for its own.
    name = f"{config.name or socket.gethostname()}.{secrets.token_hex(4)}"
    store: LeaseStore
    if config.etcd is not None:
        store = EtcdLeaseStore(_etcd_client(config.etcd), config.etcd.prefix, name, config.lease_ms)
    elif config.kubernetes is not None:
        store = _kubernetes_store(config.kubernetes, name, config.lease_ms)
    else:
        return SwitchElection() if with_switch else NoElection()
    return LeaseElection(store, name, config.lease_ms)


def state_place_of(config: ElectionConfig) -> StatePlace | None:
    """Where all controllers find operators' state: beside the lease; None: elections are held elsewhere."""
    if config.etcd is not None:
        return EtcdState(_etcd_client(config.etcd), config.etcd.prefix)
    if config.kubernetes is not None:
        from controlplane.election.kubernetes_store import KubernetesState, own_namespace

        return KubernetesState(config.kubernetes.namespace or own_namespace(), f"{config.kubernetes.lease}-state")
    return None


def _etcd_client(config: EtcdConfig) -> EtcdClient:
    return EtcdClient(config.endpoints, config.tls, config.user)


def _kubernetes_store(config: KubernetesConfig, name: str, lease_ms: int) -> LeaseStore:
    try:
        # Two seconds of processor time, and a package that only this election needs.
        from controlplane.election.kubernetes_store import KubernetesLeaseStore, own_namespace
    except ImportError as error:
        raise CannotRunError(
            f"election.by: kubernetes needs the official client ({error.name}): pip install 'kvcast[kubernetes]'"
        ) from error
    return KubernetesLeaseStore(config.namespace or own_namespace(), config.lease, name, lease_ms)
