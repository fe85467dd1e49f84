"""A node whose agent uses RDMA: the device with the node's address, its abilities, and the limit on locked memory."""

from __future__ import annotations

import resource
from pathlib import Path

from hostagent.config import AgentConfig, DataConfig, PoolConfig
from hostagent.memory.pool_memory import HUGE_PAGE_BYTES, huge_pages
from hostagent.transport.base import TransportError
from hostagent.transport.interfaces import interface_address
from hostagent.transport.verbs.device import RdmaPort, VerbsError, device_names
from hostagent.transport.verbs.retransmissions import Retransmissions
from kvcast.doctor.findings import Finding, Level, has, judged
from kvproto.units import format_bytes
from kvproto.wire.layouts import KV_DATA_BYTES
from kvproto.wire.rdma import rdma_segment_bytes_max

_CAPABILITIES = Path("/proc/self/status")
_CAP_IPC_LOCK = 14
_PRIVILEGED_QKEY = 0x8000_0000
_DOCS = "docs/how-to/rdma.md"


def examine(config: AgentConfig | None) -> list[Finding]:
    """Without a configuration: only what can be seen without knowing the data interface."""
    data = config.data if config is not None else DataConfig()
    pool = config.pool if config is not None else PoolConfig()
    findings = [_devices(), _locked_memory(pool), _huge_pages(pool), _qkey(data)]
    if config is None:
        note = Finding(
            "RDMA port", "not looked at", "the agent's", Level.NOTE, "kvcast doctor rdma --config agent.yaml"
        )
        return [*findings, note]
    try:
        port = RdmaPort.open(interface_address(data), data.rdma_device)
    except (VerbsError, TransportError) as error:
        remedy = f"see {_DOCS}; until then transport auto uses sockets"
        return [*findings, Finding("RDMA port", str(error), "a RoCEv2 port", Level.MISSING, remedy)]
    try:
        return findings + _port(port, data)
    finally:
        port.close()


def _devices() -> Finding:
    names = device_names()
    remedy = "load the NIC's driver and install libibverbs1 and ibverbs-providers (Debian); see " + _DOCS
    return judged("RDMA devices", ", ".join(names) or "none", "at least one", bool(names), Level.MISSING, remedy)


def _locked_memory(pool: PoolConfig) -> Finding:
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    free = limit == resource.RLIM_INFINITY or _may_lock_all()
    found = "unlimited" if free else format_bytes(limit)
    remedy = "LimitMEMLOCK=infinity in the agent's unit, or ulimit -l unlimited"
    wanted = f"{format_bytes(pool.size_bytes)} for the pool, and some for receives"
    return judged("locked memory", found, wanted, free or limit > pool.size_bytes, Level.MISSING, remedy)


def _may_lock_all() -> bool:
    for line in _CAPABILITIES.read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_IPC_LOCK & 1)
    return False


def _huge_pages(pool: PoolConfig) -> Finding:
    free, _ = huge_pages() or (0, 0)
    needed = -(-pool.size_bytes // HUGE_PAGE_BYTES)
    good = free >= needed or pool.huge_pages == "never"
    remedy = f"sysctl -w vm.nr_hugepages={needed} (fine while its agent runs: the pool has them)"
    return judged("huge pages", f"{free} free of 2 MiB", f"{needed} for the pool", good, Level.NOTE, remedy)


def _qkey(data: DataConfig) -> Finding:
    remedy = "a Q_Key below 0x80000000: NICs send the others only for privileged processes"
    good = data.qkey < _PRIVILEGED_QKEY
    return judged("Q_Key", f"0x{data.qkey:08x}", "below 0x80000000", good, Level.MISSING, remedy)


def _port(port: RdmaPort, data: DataConfig) -> list[Finding]:
    facts = port.facts
    name = f"{facts.device} port {facts.port}"
    needed = KV_DATA_BYTES + data.segment_bytes
    no_multicast = "none with this NIC: casts go over sockets, reads over RDMA"
    return [
        Finding("RDMA port", f"{name}, GID index {facts.gid_index}", "a RoCEv2 port"),
        has(f"multicast of {name}", facts.multicast, Level.SLOW, no_multicast, why=", for casts over RDMA"),
        judged(
            f"RDMA MTU of {name}",
            str(facts.mtu_bytes),
            f"{needed} for segments of {data.segment_bytes}",
            facts.mtu_bytes >= needed,
            Level.SLOW,
            "a larger MTU of the interface (RDMA takes the next smaller of 1024, 2048, 4096), or a switch program built"
            f" with SEGMENT_BYTES={rdma_segment_bytes_max(facts.mtu_bytes)}; until then casts go over sockets",
        ),
        _losses(port, name),
    ]


def _losses(port: RdmaPort, name: str) -> Finding:
    counters = Retransmissions(*port.counter_directories)
    names = counters.names
    counters.close()
    remedy = "nothing to do: without them what is in flight of reads shrinks only after timeouts"
    wanted = "any, so that reads hold back where packets are lost"
    return judged(f"counters of losses of {name}", ", ".join(names) or "none", wanted, bool(names), Level.NOTE, remedy)
