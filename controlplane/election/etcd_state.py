"""Operators' state in etcd: PREFIX/state, which only whoever holds the lease writes."""

from __future__ import annotations

from controlplane.core.election import Hold
from controlplane.election.contract import VALUE_BYTES_MAX, StoreUnavailableError
from controlplane.election.etcd_client import EtcdClient
from controlplane.election.etcd_rpc import etcd_pb2 as etcd


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
