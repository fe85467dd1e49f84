"""The election that the configuration names."""

from __future__ import annotations

import secrets
import socket

from controlplane.election.by_switch import NoElection, SwitchElection
from controlplane.election.contract import Election, LeaseStore, StatePlace
from controlplane.election.election_config import ElectionConfig, EtcdConfig, KubernetesConfig
from controlplane.election.etcd_client import EtcdClient
from controlplane.election.etcd_store import EtcdLeaseStore, EtcdState
from controlplane.election.lease_election import LeaseElection
from kvdaemon.errors import CannotRunError


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
