"""Messages of the control channel to and from the agent's own values. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hostagent.directory import ChunkEntry, Delta, NodeEntry
from hostagent.pool.chunks import Chunk
from kvproto.ids import KEY_BYTES, Address, ChunkKey
from kvproto.rpc import control_pb2 as pb
from kvproto.wire.data import Fabric


class RemoteProtocolError(Exception):
    """The controller said something that cannot be; the stream is closed and opened again."""


@dataclass(frozen=True, slots=True)
class FabricNews:
    """What Welcome says of the fabric."""

    fabric: Fabric
    pool_address: Address
    interest_ttl_ns: int


def key_of(raw: bytes) -> ChunkKey:
    """A key; raises RemoteProtocolError for another length."""
    if len(raw) != KEY_BYTES:
        raise RemoteProtocolError(f"a key of {len(raw)} bytes")
    return ChunkKey(raw)


def address_of(raw: bytes) -> Address:
    """An IPv4 address; raises RemoteProtocolError for another length."""
    if len(raw) != 4:
        raise RemoteProtocolError(f"an address of {len(raw)} bytes")
    return Address(int.from_bytes(raw, "big"))


def fabric_of(message: pb.Fabric, current: Fabric) -> FabricNews:
    """The fabric; what the controller leaves out stays as it is here."""
    try:
        fabric = Fabric(
            group=address_of(message.group_ip) if message.group_ip else current.group,
            qkey=message.qkey or current.qkey,
            source_qpn=current.source_qpn,
            segment_bytes=message.segment_bytes or current.segment_bytes,
            from_switch_dscp=message.from_switch_dscp or current.from_switch_dscp,
        )
    except ValueError as error:
        raise RemoteProtocolError(str(error)) from error
    return FabricNews(
        fabric,
        address_of(message.pool_ip) if message.pool_ip else Address(0),
        message.interest_ttl_ms * 1_000_000,
    )


def delta_of(message: pb.DirectoryDelta) -> Delta:
    """A change of the directory."""
    return Delta(
        message.sequence,
        message.snapshot,
        message.snapshot_end,
        tuple(_node(node) for node in message.nodes),
        tuple(message.nodes_gone),
        tuple(_chunk(chunk) for chunk in message.chunks),
        tuple(key_of(key) for key in message.chunks_gone),
    )


def _node(message: pb.Node) -> NodeEntry:
    return NodeEntry(
        message.node,
        message.name,
        address_of(message.data_ip),
        message.read_endpoint,
        message.member if message.HasField("member") else None,
        message.draining,
    )


def _chunk(message: pb.ChunkEntry) -> ChunkEntry:
    if not message.size_bytes:
        raise RemoteProtocolError("a chunk without bytes")
    return ChunkEntry(
        key_of(message.key),
        key_of(message.parent) if message.parent else None,
        message.size_bytes,
        message.checksum,
        message.position,
        tuple(message.holders),
        message.served,
        message.pinned,
        message.value,
        tuple(message.disk_holders),
    )


def announcement(
    added: Iterable[Chunk],
    removed: Iterable[ChunkKey],
    pinned: Iterable[ChunkKey],
    *,
    on_disk: bool = False,
    snapshot: bool = False,
    snapshot_end: bool = False,
) -> pb.FromAgent:
    """What this node holds in its pool, or on its disk (part of the whole list), or how that changed."""
    kept = set(pinned)
    labels: dict[str, int] = {}
    records = [
        pb.ChunkRecord(
            key=chunk.key,
            parent=chunk.parent or b"",
            size_bytes=chunk.size_bytes,
            checksum=chunk.checksum,
            position=chunk.position,
            namespace_index=labels.setdefault(chunk.namespace, len(labels)),
            pinned=chunk.key in kept,
            on_disk=on_disk,
        )
        for chunk in added
    ]
    return pb.FromAgent(
        announce=pb.Announce(
            added=records,
            removed=() if on_disk else list(removed),
            removed_from_disk=list(removed) if on_disk else (),
            namespaces=list(labels),
            snapshot=snapshot,
            snapshot_end=snapshot_end,
        )
    )
