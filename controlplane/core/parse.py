"""From the messages of agents to checked values. What breaks the contract of control.proto raises RecordError, whose
text names the field; of a list the bad records alone are refused (`Refusals.taken`)."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence

from controlplane.core.claims import ClaimRun
from controlplane.core.ids import ROOT_KEY, ChunkKey, Member, SwitchPort
from controlplane.core.limits import (
    ANNOUNCE_RECORDS_MAX,
    ARRIVING_MAX,
    CHUNK_BYTES_MAX,
    CLAIM_KEYS_MAX,
    COUNTER_NAME_MAX,
    COUNTERS_MAX,
    HELLO_TEXT_BYTES_MAX,
    LOOK_UP_KEYS_MAX,
    MEMBERS_MAX,
    NEXT_VICTIMS_MAX,
    NODE_NAME_BYTES_MAX,
    NODES_MAX,
    PAST_FETCHES_MAX,
    REVISION_MAX,
    SWITCH_PINS_MAX,
    SWITCH_PORT_MAX,
    WARM_WAIT_MS_MAX,
    WARM_WISHES_MAX,
)
from controlplane.core.nodes import NodeFacts
from controlplane.core.read_access import ExpulsionError, checked
from controlplane.core.refusals import Refusals
from controlplane.core.warmups import WarmWish
from kvchunk.ids import KEY_BYTES, Digest
from kvpolicy.tiers.cost_question import CostQuestion, question_from
from kvpolicy.value import Measurement, PastFetches, Tier
from kvpolicy.value.costs import MEASUREMENTS_MAX
from kvpolicy.value.history import TOUCHES_MAX
from kvproto.chunk_columns import ON_DISK, PINNED, Columns, Record, columns_of
from kvproto.fanout import Fanout
from kvproto.integrity import Integrity, algorithm_of, algorithms_of, parse_digest
from kvproto.limits import RAILS_MAX
from kvproto.records import RecordError, check_chunk, check_namespace, check_size, chunk_key
from kvproto.rpc import control_pb2 as rpc
from kvproto.units import format_bytes

_TIERS = {
    rpc.SourceMeasurement.From.Value(f"FROM_{tier.name}"): tier
    for tier in Tier
    if tier is not Tier.LOCAL_DRAM  # which nobody has to get
}


def node_facts(hello: rpc.Hello, speaker: str = "") -> NodeFacts:
    """What a Hello says, checked; `speaker`: who said it. Raises RecordError."""
    name = hello.node
    if not name or len(name.encode()) > NODE_NAME_BYTES_MAX or not name.isprintable() or " " in name:
        raise RecordError(
            f"node name {reprlib.repr(name)} is not 1 to {NODE_NAME_BYTES_MAX} printable characters without blanks"
        )
    rails = hello.rail_endpoints
    if len(rails) >= RAILS_MAX:
        raise RecordError(
            f"{len(rails)} rail_endpoints: a node has {RAILS_MAX} rails at most, the first of which is apart"
        )
    texts = (
        ("version", hello.version),
        ("rack", hello.rack),
        *(("read_endpoint", one) for one in (hello.read_endpoint, *rails)),
    )
    for field, text in texts:
        if len(text.encode()) > HELLO_TEXT_BYTES_MAX:
            raise RecordError(f"{field} {reprlib.repr(text)} has more than {HELLO_TEXT_BYTES_MAX} bytes")
    if len(hello.data_ip) not in (4, 16):
        raise RecordError(f"data_ip has {len(hello.data_ip)} bytes, not 4 or 16")
    if len(hello.data_mac) != 6:
        raise RecordError(f"data_mac has {len(hello.data_mac)} bytes, not 6")
    if hello.control_port > 65535:
        raise RecordError(f"control_port is {hello.control_port}: a port is between 1 and 65535")
    if hello.switch_port > SWITCH_PORT_MAX:
        raise RecordError(f"switch_port {hello.switch_port} is not in 1..{SWITCH_PORT_MAX} (0: not known)")
    if hello.member >= MEMBERS_MAX:
        raise RecordError(f"member {hello.member} is not in 0..{MEMBERS_MAX - 1}")
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
        rail_endpoints=tuple(rails),
        rack=hello.rack,
        link_rate_bit_s=hello.link_rate,
        speaker=speaker,
        integrities=algorithms_of(list(hello.integrities)),
        takes_columns=hello.takes_columns,
        follows=hello.follows,
        member=Member(hello.member) if hello.HasField("member") else None,
        fanouts=frozenset({Fanout.SWITCH, *(one for one in Fanout if one.value in hello.fanouts)}),
    )


def check_operator_state(state: rpc.OperatorState) -> None:
    """What operators set, as an agent repeats it. Raises RecordError."""
    names = max(len(state.drained), len(state.expelled))
    if state.revision > REVISION_MAX or len(state.switch_pins) > SWITCH_PINS_MAX or names > NODES_MAX:
        raise RecordError(
            f"operator_state: revision {state.revision}, {len(state.switch_pins)} pins, {len(state.drained)} drained,"
            f" {len(state.expelled)} expelled"
        )
    try:
        checked(state.expelled)
    except ExpulsionError as error:
        raise RecordError(f"operator_state: {error}") from error
    for raw in state.switch_pins:
        chunk_key(raw, "operator_state.switch_pins")


def announced(
    announce: rpc.Announce, refusals: Refusals, integrity: Integrity = Integrity.BLAKE3
) -> tuple[list[Record], Columns]:
    """The copies added, those named one by one and those in columns, in a fabric whose chunks are digested by
    `integrity`. Raises RecordError for too many."""
    columns = announce.columns
    added, removed = len(announce.added) + len(columns.keys) // KEY_BYTES, len(announce.removed)
    if added + removed + len(announce.removed_from_disk) > ANNOUNCE_RECORDS_MAX:
        raise RecordError(f"an Announce of more than {ANNOUNCE_RECORDS_MAX} records")
    namespaces = announce.namespaces
    copies = refusals.taken("copy", announce.added, lambda record: _record(record, namespaces, integrity))
    said, _ = columns_of(columns, namespaces, integrity, lambda key, why: refusals.add("copy", key, why))
    return copies, said


def claims(message: rpc.Claims, refusals: Refusals) -> tuple[list[ClaimRun], list[ChunkKey]]:
    """(what a node's engines compute, what of that they do not compute any more). Raises RecordError for too many."""
    if sum(len(claim.keys) for claim in message.made) + len(message.withdrawn) > CLAIM_KEYS_MAX:
        raise RecordError(f"claims of more than {CLAIM_KEYS_MAX} keys")
    return refusals.taken("claim", message.made, _claim_run), keys(message.withdrawn, "claims.withdrawn", refusals)


def _claim_run(claim: rpc.Claim) -> ClaimRun:
    if len(claim.eta_ms) != len(claim.keys):
        raise RecordError(f"a claim of {len(claim.keys)} keys with {len(claim.eta_ms)} times")
    check_size(claim.size_bytes)
    return ClaimRun(tuple(chunk_key(raw, "claims.made") for raw in claim.keys), claim.size_bytes, tuple(claim.eta_ms))


def keys(raw: Iterable[bytes], field: str, refusals: Refusals) -> list[ChunkKey]:
    """Keys of a list."""
    return refusals.taken("key", raw, lambda one: chunk_key(one, field))


def look_up(message: rpc.LookUp) -> tuple[list[ChunkKey], list[ChunkKey], ChunkKey | None]:
    """(keys that a node asks for, keys that it lets go, the root of their prefix). Raises RecordError for too many, and
    for broken ones."""
    found = []
    for what, raw in (("keys", message.keys), ("released", message.released)):
        if len(raw) % KEY_BYTES or len(raw) > LOOK_UP_KEYS_MAX * KEY_BYTES:
            raise RecordError(f"look_up.{what} of {len(raw)} bytes: {LOOK_UP_KEYS_MAX} keys of {KEY_BYTES} at most")
        found.append([ChunkKey(raw[at : at + KEY_BYTES]) for at in range(0, len(raw), KEY_BYTES)])
    return found[0], found[1], chunk_key(message.root, "look_up.root") if message.root else None


def next_victims(heartbeat: rpc.Heartbeat, refusals: Refusals) -> tuple[ChunkKey, ...]:
    """What the node's pool would lose next."""
    return tuple(keys(heartbeat.next_victims[:NEXT_VICTIMS_MAX], "next_victims", refusals))


def arriving(heartbeat: rpc.Heartbeat) -> tuple[rpc.Arriving, ...]:
    """Chunks on their way to the node."""
    some = heartbeat.arriving[:ARRIVING_MAX]
    for one in some:
        chunk_key(one.key, "arriving")
    return tuple(some)


def reads(heartbeat: rpc.Heartbeat) -> str:
    """Where a node found that several end sooner if each reads, for people; empty: nowhere. Raises RecordError for
    numbers of readers that cannot be."""
    if len(heartbeat.ways) > MEMBERS_MAX or any(not 1 < one.readers <= NODES_MAX for one in heartbeat.ways):
        raise RecordError(f"ways: {len(heartbeat.ways)} numbers of readers, or one that cannot be")
    return ", ".join(
        f"{one.readers} readers each read at {format_bytes(one.read_bytes_per_s)}/s,"
        f" {format_bytes(one.fanout_bytes_per_s)}/s if fanned out"
        for one in heartbeat.ways
        if one.read
    )


def counts(given: Mapping[str, int], what: str) -> dict[str, int]:
    """Counters by name, as an agent has them. Raises RecordError for more, or longer names, than agents have."""
    if len(given) > COUNTERS_MAX or any(len(name) > COUNTER_NAME_MAX for name in given):
        raise RecordError(f"{what}: {len(given)} counters, or one with a long name")
    return dict(given)


def fetches(usage: rpc.Usage, refusals: Refusals) -> list[rpc.FetchEvent]:
    """What the node's engines fetched."""
    return refusals.taken("fetch", usage.fetches, _fetch)


def _fetch(fetch: rpc.FetchEvent) -> rpc.FetchEvent:
    chunk_key(fetch.key)
    if fetch.bytes > CHUNK_BYTES_MAX:
        raise RecordError(f"a fetch of {fetch.bytes} bytes: a chunk has {CHUNK_BYTES_MAX} at most")
    return fetch


def past_fetches(usage: rpc.Usage, refusals: Refusals) -> dict[ChunkKey, PastFetches]:
    """What the node told other controllers of, by chunk."""
    if len(usage.past) > PAST_FETCHES_MAX:
        raise RecordError(f"past fetches of {len(usage.past)} chunks, not of {PAST_FETCHES_MAX} at most")
    return dict(refusals.taken("past", usage.past, _past_fetch))


def _past_fetch(one: rpc.PastFetches) -> tuple[ChunkKey, PastFetches]:
    key = chunk_key(one.key, "past")
    if not 1 <= one.touches <= TOUCHES_MAX or not 0 < one.weight <= one.touches:
        raise RecordError(f"past fetches of chunk {key.hex()}: {one.touches} with a weight of {one.weight}")
    gap_s = one.gap_ms / 1000 if one.HasField("gap_ms") else None
    return key, PastFetches(one.touches, one.weight, one.age_ms / 1000, gap_s)


def measurements(usage: rpc.Usage) -> list[Measurement]:
    """What the node measured; kinds of source that we do not know are left out."""
    return [
        Measurement(_TIERS[one.source], one.bytes, one.took_us / 1e6)
        for one in usage.measurements[:MEASUREMENTS_MAX]
        if one.source in _TIERS
    ]


def warm_wishes(usage: rpc.Usage, refusals: Refusals) -> list[WarmWish]:
    """What starting engines ask for. Raises RecordError for too many."""
    if len(usage.warms) > WARM_WISHES_MAX:
        raise RecordError(f"{len(usage.warms)} wishes of starting engines, at most {WARM_WISHES_MAX} allowed")
    return refusals.taken("wish", usage.warms, _warm_wish)


def _warm_wish(one: rpc.WarmWish) -> WarmWish:
    check_namespace(one.namespace)
    return WarmWish(one.namespace, one.bytes, one.nodes, min(one.wait_ms, WARM_WAIT_MS_MAX) * 1_000_000)


def _record(record: rpc.ChunkRecord, namespaces: Sequence[str], integrity: Integrity) -> Record:
    key = chunk_key(record.key)
    parent = chunk_key(record.parent, "parent") if record.parent and record.parent != ROOT_KEY else None
    if namespaces and record.namespace_index >= len(namespaces):
        raise RecordError(f"namespace_index {record.namespace_index} of chunk {key.hex()}: {len(namespaces)} are named")
    namespace = namespaces[record.namespace_index] if namespaces else ""
    check_chunk(key, parent, record.size_bytes, record.position, namespace)
    flags = PINNED * record.pinned | ON_DISK * record.on_disk
    return Record(key, parent, record.size_bytes, _digest(record, integrity), record.position, namespace, flags)


def _digest(record: rpc.ChunkRecord, integrity: Integrity) -> Digest:
    try:
        digest = parse_digest(record.digest)
    except ValueError as error:
        raise RecordError(f"chunk {record.key.hex()}: {error}") from None
    if algorithm_of(digest) is not integrity:
        raise RecordError(
            f"chunk {record.key.hex()} has a digest by {algorithm_of(digest).value}, the fabric's are by"
            f" {integrity.value}"
        )
    return digest


def cost_question(request: rpc.CostRequest) -> CostQuestion:
    """A router's question. Raises QuestionError."""
    asked: dict[str, object] = {
        "keys": [key.hex() for key in request.keys],
        "attention_share": request.attention_share,
        "queue_s": dict(request.queues_s) or request.queue_s,
        "nodes": list(request.nodes),
    }
    for name in ("recompute_s", "within_s"):
        if request.HasField(name):
            asked[name] = getattr(request, name)
    return question_from(asked)
