"""A lease in etcd: a key that goes when its holder stops renewing, and beside it the epoch, which stays.

    PREFIX/leader   who leads, under which epoch; bound to the leader's lease
    PREFIX/epoch    of the last leadership

Both are written in one transaction, which finds both as they were seen.

Operators' state in etcd: PREFIX/state, which only whoever holds the lease writes.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable

from controlplane.core.election import Hold
from controlplane.election.contract import VALUE_BYTES_MAX, StoreUnavailableError, epoch_after
from controlplane.election.etcd_client import EtcdClient
from controlplane.election.etcd_rpc import etcd_pb2 as etcd

_EPOCH_BYTES_MAX = 20


class EtcdLeaseStore:
    """`LeaseStore` in etcd."""

    def __init__(self, client: EtcdClient, prefix: str, name: str, lease_ms: int) -> None:
        """`name`: of this candidate."""
        self._client = client
        self._leader = f"{prefix}/leader".encode()
        self._epoch = f"{prefix}/epoch".encode()
        self._name = name
        self._ttl_s = math.ceil(lease_ms / 1000)
        self._lease = 0
        """That its key is bound to, or is to be; 0: none was granted."""
        self._epoch_seen = etcd.KeyValue()

    @property
    def place(self) -> str:
        """See `LeaseStore`."""
        return f"etcd at {self._client.address}"

    @property
    def ends_by_itself(self) -> bool:
        """See `LeaseStore`."""
        return True

    async def look(self) -> Hold | None:
        """See `LeaseStore`."""
        leader, self._epoch_seen = await self._client.read(self._leader, self._epoch)
        hold = None if leader is None else _hold_of(leader)
        if leader is not None and hold is not None and hold.holder == self._name:
            self._lease = leader.lease
        return hold

    async def take(self, epoch_above: int, instead_of: Hold | None) -> Hold | None:
        """See `LeaseStore`. etcd itself forgets whoever has stopped renewing."""
        if instead_of is not None:
            raise AssertionError("etcd forgets a holder by itself")
        self._lease = await self._client.grant(self._ttl_s)
        before, found = _epoch_of(self._epoch_seen), self._epoch_seen.mod_revision
        epoch = epoch_after(max(epoch_above, before), time.time_ns() // 1_000_000)
        value = json.dumps({"holder": self._name, "epoch": epoch}).encode()
        revision = await self._client.write(
            [
                etcd.Compare(target=etcd.Compare.CREATE, key=self._leader, create_revision=0),
                etcd.Compare(target=etcd.Compare.MOD, key=self._epoch, mod_revision=found),
            ],
            [
                etcd.PutRequest(key=self._leader, value=value, lease=self._lease),
                etcd.PutRequest(key=self._epoch, value=str(epoch).encode()),
            ],
        )
        if not revision:
            await self._client.revoke(self._lease)
            return None
        return Hold(self._name, epoch, revision)

    async def renew(self, hold: Hold) -> Hold | None:
        """See `LeaseStore`."""
        # The key goes with the lease; but somebody may have deleted it by hand, and then another one leads.
        (leader, self._epoch_seen), lasts = await asyncio.gather(
            self._client.read(self._leader, self._epoch), self._client.keep_alive(self._lease)
        )
        return hold if lasts and leader is not None and _hold_of(leader) == hold else None

    async def release(self, hold: Hold) -> None:
        """See `LeaseStore`."""
        if self._lease:
            await self._client.revoke(self._lease)

    async def watch(self, tell: Callable[[], None]) -> None:
        """See `LeaseStore`."""
        await self._client.watch(self._leader, tell)

    async def close(self) -> None:
        """See `LeaseStore`."""
        await self._client.close()


def _hold_of(pair: etcd.KeyValue) -> Hold:
    try:
        said = json.loads(pair.value)
        return Hold(str(said["holder"]), int(said["epoch"]), pair.mod_revision)
    except (ValueError, KeyError, TypeError) as error:
        raise StoreUnavailableError(f"{pair.key.decode(errors='replace')} holds what no controller wrote") from error


def _epoch_of(pair: etcd.KeyValue) -> int:
    if not pair.value:
        return 0
    if len(pair.value) > _EPOCH_BYTES_MAX or not pair.value.isdigit():
        raise StoreUnavailableError(f"{pair.key.decode(errors='replace')} is no number: it is not a controller's")
    return int(pair.value)


class EtcdState:
    """`StatePlace` in etcd, over a connection of its own."""

    def __init__(self, client: EtcdClient, prefix: str) -> None:
        self._client = client
        self._state = f"{prefix}/state".encode()
        self._leader = f"{prefix}/leader".encode()

    @property
    def place(self) -> str:
        """See `StatePlace`."""
        return f"etcd at {self._client.address}"

    async def load(self) -> bytes | None:
        """See `StatePlace`."""
        state, _ = await self._client.read(self._state, self._leader)
        return None if state is None else state.value

    async def save(self, content: bytes, hold: Hold) -> None:
        """See `StatePlace`."""
        if len(content) > VALUE_BYTES_MAX:
            raise StoreUnavailableError(f"{len(content)} bytes are too many for it: unpin chunks from the switch")
        mine = etcd.Compare(target=etcd.Compare.MOD, key=self._leader, mod_revision=int(hold.version))
        if not await self._client.write([mine], [etcd.PutRequest(key=self._state, value=content)]):
            raise StoreUnavailableError("another controller leads")

    async def close(self) -> None:
        """See `StatePlace`."""
        await self._client.close()
