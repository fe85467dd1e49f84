"""From the messages of agents to checked values. A malformed message raises MalformedError, whose text names the
field; the stream is then closed, because a peer that breaks the contract once cannot be trusted with the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.directory import ChunkFacts
from controlplane.ids import KEY_BYTES, ROOT_KEY, ChunkKey, SwitchPort
from controlplane.limits import (
    ANNOUNCE_RECORDS_MAX,
    CHUNK_BYTES_MAX,
    NAMESPACE_LABEL_BYTES_MAX,
    NEXT_VICTIMS_MAX,
    NODE_NAME_BYTES_MAX,
    PREFIX_CHUNKS_MAX,
)
from controlplane.nodes import NodeFacts
from kvproto.rpc import control_pb2 as rpc
from kvproto.value import Measurement, Source
from kvproto.value.costs import MEASUREMENTS_MAX

_SOURCES = {
    rpc.SourceMeasurement.From.Value(f"FROM_{source.name}"): source
    for source in Source
    if source is not Source.LOCAL_DRAM  # which nobody has to get
}


class MalformedError(Exception):
    """A message that breaks the contract of control.proto."""


def chunk_key(raw: bytes, field: str = "key") -> ChunkKey:
    if len(raw) != KEY_BYTES:
        raise MalformedError(f"{field} has {len(raw)} bytes, not {KEY_BYTES}")
    return ChunkKey(raw)


def node_facts(hello: rpc.Hello) -> NodeFacts:
    name = hello.node
    if not name or len(name.encode()) > NODE_NAME_BYTES_MAX or not name.isprintable() or " " in name:
        raise MalformedError(
            f"node name {name!r} is not 1 to {NODE_NAME_BYTES_MAX} printable characters without blanks"
        )
    if len(hello.data_ip) != 4:
        raise MalformedError(f"data_ip has {len(hello.data_ip)} bytes, not 4")
    if len(hello.data_mac) != 6:
        raise MalformedError(f"data_mac has {len(hello.data_mac)} bytes, not 6")
    if hello.control_port > 65535:
        raise MalformedError(f"control_port {hello.control_port} is no port")
    return NodeFacts(
        name=name,
        incarnation=hello.incarnation,
        data_ip=hello.data_ip,
        data_mac=hello.data_mac,
        read_endpoint=hello.read_endpoint,
        control_port=hello.control_port,
        switch_port=SwitchPort(hello.switch_port) if hello.switch_port else None,
        pool_bytes=hello.pool_bytes,
        segment_bytes=frozenset(hello.segment_bytes),
        version=hello.version,
        replica_of=hello.replica_of,
        replica_nodes=hello.replica_nodes,
        disk_bytes=hello.disk_bytes,
        rdma_mtu_bytes=hello.rdma_mtu,
    )


@dataclass(frozen=True, slots=True)
class AnnouncedCopy:
    """A copy that a node says it has."""

    facts: ChunkFacts
    pinned: bool
    on_disk: bool


def announced(announce: rpc.Announce) -> list[AnnouncedCopy]:
    """The copies added."""
    if len(announce.added) + len(announce.removed) + len(announce.removed_from_disk) > ANNOUNCE_RECORDS_MAX:
        raise MalformedError(f"an Announce of more than {ANNOUNCE_RECORDS_MAX} records")
    labels = [label[:NAMESPACE_LABEL_BYTES_MAX] for label in announce.namespaces]
    return [AnnouncedCopy(_facts(record, labels), record.pinned, record.on_disk) for record in announce.added]


def next_victims(heartbeat: rpc.Heartbeat) -> tuple[ChunkKey, ...]:
    """What the node's pool would lose next."""
    return tuple(chunk_key(raw, "next_victims") for raw in heartbeat.next_victims[:NEXT_VICTIMS_MAX])


def measurements(usage: rpc.Usage) -> list[Measurement]:
    """What the node measured; kinds of source that we do not know are left out."""
    return [
        Measurement(_SOURCES[one.source], one.bytes, one.took_us / 1e6)
        for one in usage.measurements[:MEASUREMENTS_MAX]
        if one.source in _SOURCES
    ]


def _facts(record: rpc.ChunkRecord, labels: Sequence[str]) -> ChunkFacts:
    key = chunk_key(record.key)
    if not 0 < record.size_bytes <= CHUNK_BYTES_MAX:
        raise MalformedError(f"size_bytes {record.size_bytes} of chunk {key.hex()} is not in 1..{CHUNK_BYTES_MAX}")
    if record.position >= PREFIX_CHUNKS_MAX:
        raise MalformedError(f"position {record.position} of chunk {key.hex()} is not below {PREFIX_CHUNKS_MAX}")
    parent = chunk_key(record.parent, "parent") if record.parent and record.parent != ROOT_KEY else None
    if parent == key:
        raise MalformedError(f"chunk {key.hex()} is its own parent")
    label = labels[record.namespace_index] if record.namespace_index < len(labels) else ""
    return ChunkFacts(key, parent, record.size_bytes, record.checksum, record.position, label)
