"""Reliable connections (RC) for one-sided reads: the asker's end and the answerer's, made from what they exchange.

The answerer's end only has to be ready to receive: the NIC answers RDMA READs without its host. Addresses, keys and
packet sequence numbers travel over the TCP connection between the agents (`read_protocol`).
"""

from __future__ import annotations

import secrets

from hostagent import limits
from hostagent.transport.base import Extent, TransportCounters
from hostagent.transport.read_protocol import QueuePairEnd, RemoteExtent
from hostagent.transport.verbs import abi
from hostagent.transport.verbs.device import Domain, MemoryRegion, RdmaPort, VerbsError
from hostagent.transport.verbs.queues import CompletionQueue, QueuePair, route

_MTU_CODES = {size_bytes: code for code, size_bytes in abi.MTU_BYTES.items()}
_RNR_TIMER = 12
"""0.64 ms (IBTA 9.7.5.2.8); reads meet no receiver-not-ready, but the attribute has to be set."""


class ReadQueuePair:
    """One end of a reliable connection, made in two steps: the peer gets `end`; `answer` or `ask` take the peer's."""

    def __init__(
        self, port: RdmaPort, completions: CompletionQueue, send_entries: int, domain: Domain | None = None
    ) -> None:
        """`domain`: see `QueuePair`. Raises VerbsError."""
        self._port = port
        facts = port.facts
        self.queue_pair = QueuePair(port, abi.QPT_RC, (completions, send_entries, 1), (completions, 1), domain)
        self.end = QueuePairEnd(
            number=self.queue_pair.number,
            psn=secrets.randbits(24),
            mtu_bytes=facts.mtu_bytes,
            reads_in_flight=facts.reads_in_flight,
            gid=facts.gid,
        )
        mask = abi.QP_PKEY_INDEX | abi.QP_PORT | abi.QP_ACCESS_FLAGS
        try:
            self.queue_pair.modify(abi.QPS_INIT, mask, port_num=facts.port, qp_access_flags=abi.ACCESS_REMOTE_READ)
        except VerbsError:
            self.queue_pair.destroy()
            raise

    def answer(self, peer: QueuePairEnd) -> None:
        """Be ready for the peer's reads. Raises VerbsError."""
        facts = self._port.facts
        mask = abi.QP_AV | abi.QP_PATH_MTU | abi.QP_DEST_QPN | abi.QP_RQ_PSN
        self.queue_pair.modify(
            abi.QPS_RTR,
            mask | abi.QP_MAX_DEST_RD_ATOMIC | abi.QP_MIN_RNR_TIMER,
            ah_attr=route(self._port, peer.gid, limits.MULTICAST_TTL),
            path_mtu=_MTU_CODES[min(facts.mtu_bytes, peer.mtu_bytes)],
            dest_qp_num=peer.number,
            rq_psn=peer.psn,
            max_dest_rd_atomic=min(facts.reads_in_flight, peer.reads_in_flight),
            min_rnr_timer=_RNR_TIMER,
        )

    def ask(self, peer: QueuePairEnd) -> None:
        """Be ready to read from the peer, too. Raises VerbsError."""
        self.answer(peer)
        mask = abi.QP_TIMEOUT | abi.QP_RETRY_CNT | abi.QP_RNR_RETRY | abi.QP_SQ_PSN
        self.queue_pair.modify(
            abi.QPS_RTS,
            mask | abi.QP_MAX_QP_RD_ATOMIC,
            timeout=limits.VERBS_READ_TIMEOUT_EXPONENT,
            retry_cnt=limits.VERBS_READ_RETRIES,
            rnr_retry=limits.VERBS_READ_RETRIES,
            sq_psn=self.end.psn,
            max_rd_atomic=min(self._port.facts.reads_in_flight, peer.reads_in_flight),
        )

    def destroy(self) -> None:
        """Once it returns, nothing is read or written through it any more. Idempotent."""
        self.queue_pair.destroy()


class PoolAccess:
    """RDMA for one peer that reads from our pool; see `read_server.RemoteAccess`.

    Each peer has a protection domain of its own, and in it only the chunks that it has opened: no other key is of any
    use to it, whoever's it may be.
    """

    def __init__(
        self, port: RdmaPort, completions: CompletionQueue, pool_address: int, counters: TransportCounters
    ) -> None:
        """`completions`: where completions of the answering end would go; it makes none. `pool_address`: of the pool's
        first byte."""
        self._port = port
        self._completions = completions
        self._pool_address = pool_address
        self._counters = counters
        self._domain: Domain | None = None
        self._connection: ReadQueuePair | None = None
        self._regions: dict[int, MemoryRegion] = {}
        """What the peer may read, by the number of its OPEN."""

    def connect(self, peer: QueuePairEnd) -> QueuePairEnd | None:
        """Our end of a fresh connection; None when the NIC has no queue pair left or cannot reach the peer."""
        self._drop_connection()
        try:
            if self._domain is None:
                self._domain = self._port.new_domain()
            connection = ReadQueuePair(self._port, self._completions, 1, self._domain)
        except VerbsError:
            self._counters.drop("read_queue_pair")
            return None
        try:
            connection.answer(peer)
        except VerbsError:
            self._counters.drop("read_queue_pair")
            connection.destroy()
            return None
        self._connection = connection
        return connection.end

    def where(self, number: int, extent: Extent) -> RemoteExtent | None:
        """Let the peer read these bytes of the pool; None: the NIC does not take them, or nobody has connected."""
        if self._domain is None:
            return None
        address = self._pool_address + extent.offset
        try:
            # Of this chunk alone, and not kept: a peer could read whatever the pool puts there next. Binding a memory
            # window takes as long (105 to 148 us on soft-RoCE; a region of 1 MiB takes 93).
            region = self._domain.register(address, extent.size_bytes, abi.ACCESS_REMOTE_READ, "a chunk")
        except VerbsError:
            self._counters.drop("read_region")
            return None
        self._regions[number] = region
        return RemoteExtent(address, extent.size_bytes, region.remote_key)

    def forget(self, number: int) -> None:
        """The peer reads them no more. Idempotent."""
        region = self._regions.pop(number, None)
        if region is not None:
            region.close()

    def close(self) -> None:
        """When it returns, the peer reads nothing any more. Idempotent."""
        self._drop_connection()
        for number in list(self._regions):
            self.forget(number)
        if self._domain is not None:
            self._domain.close()
            self._domain = None

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.destroy()
            self._connection = None
