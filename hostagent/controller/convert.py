"""Messages of the control channel to and from the agent's own values. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final, TypeAlias, assert_never

from hostagent import limits
from hostagent.controller.refusals import Refusals
from hostagent.core import effects
from hostagent.core.chunk_entry import ChunkEntry, Variant
from hostagent.core.directory import ClaimedChunk, Delta, NodeClaims, NodeEntry
from hostagent.core.events import (
    ControllerEvent,
    DirectoryChanged,
    LookedUp,
    MemberGiven,
    SwitchStateGiven,
    TaskCancelled,
    TaskGiven,
    Welcomed,
)
from hostagent.core.work import (
    DropWork,
    FetchWork,
    FillWork,
    PinWork,
    RecheckWork,
    RefusedWork,
    Task,
    UnpinWork,
    Work,
)
from kvchunk.ids import ROOT_KEY, ChunkKey, Digest
from kvchunk.sources import ChunkSource
from kvclient.messages import Hint
from kvpolicy.tiers.holder_load import HolderLoad
from kvpolicy.value import PastFetches
from kvproto import __version__
from kvproto.chunk_columns import ON_DISK, PINNED, SERVED, pack, unpack
from kvproto.fanout import Fanout
from kvproto.ids import Address, Member
from kvproto.integrity import Integrity, algorithm_of, algorithms_of, parse_digest
from kvproto.limits import MEMBERS_MAX, RAILS_MAX
from kvproto.records import RecordError, check_chunk, check_size, chunk_key
from kvproto.rpc import control_pb2 as pb
from kvproto.session.choice import Way
from kvproto.wire.data import Fabric

_HINTS = {Hint.SESSION_ENDED: pb.ReuseHint.SESSION_ENDED, Hint.EXPECTED: pb.ReuseHint.EXPECTED}

assert all(pb.Source.Value(f"SOURCE_{source.name}") == source.value for source in ChunkSource)


class RemoteProtocolError(Exception):
    """The controller named a fabric that cannot be, and nothing goes without one: another stream is opened."""


class VersionSkewError(Exception):
    """The controller is too old or too new for this agent; one line names both versions."""


NO_ADDRESS: Final = Address(0)
"""Of a node without IPv4 on the data network: nothing is cast to it, nobody JOINs there."""


def address_of(raw: bytes) -> Address:
    """An IPv4 address; raises RecordError for another length."""
    if len(raw) != 4:
        raise RecordError(f"an address of {len(raw)} bytes: IPv4 addresses have 4")
    return Address(int.from_bytes(raw, "big"))


def events_of(
    message: pb.ToAgent, fabric: Fabric, refusals: Refusals, integrity: Integrity = Integrity.BLAKE3
) -> list[ControllerEvent]:
    """The events in a message, without the records that are refused. `fabric`, `integrity`: those that this node uses
    after the message."""
    match message.WhichOneof("message"):
        case "welcome":
            said: list[ControllerEvent] = [_welcomed(message.welcome, fabric, refusals, integrity)]
            if message.welcome.HasField("switch_state"):
                said.append(_switch_state(message.welcome.switch_state, refusals))
            return said
        case "directory":
            return [DirectoryChanged(delta_of(message.directory, refusals, integrity))]
        case "looked_up":
            answer = message.looked_up
            found = delta_of(answer.found, refusals, integrity)
            return [LookedUp(answer.number, found, answer.refused, answer.HasField("elsewhere"))]
        case "task":
            return [TaskGiven(task_of(message.task, refusals))]
        case "cancel":
            return [TaskCancelled(message.cancel.task)]
        case "switch_state":
            return [_switch_state(message.switch_state, refusals)]
        case "membership":
            place = message.membership
            fanout = _fanout(place.fanout) if place.fanout else None
            members = refusals.taken("member", [place], _member)
            return [MemberGiven(member, fanout, place.unasked_weight) for member in members]
    return []


def fabric_of(message: pb.Fabric, current: Fabric, member: Member | None = None) -> Fabric:
    """The fabric; fields that the controller leaves out keep their current values. `member`: this node's number."""
    try:
        fanout = _fanout(message.fanout)
        has_numbers = fanout is Fanout.MULTICAST
        return Fabric(
            group=address_of(message.group_ip) if message.group_ip else current.group,
            qkey=message.qkey or current.qkey,
            source_qpn=current.source_qpn,
            segment_bytes=message.segment_bytes or current.segment_bytes,
            from_switch_dscp=message.from_switch_dscp or current.from_switch_dscp,
            fanout=fanout,
            unasked_weight=message.unasked_weight if has_numbers else 0.0,
            member=member if has_numbers else None,
        )
    except ValueError as error:  # RecordError is one
        raise RemoteProtocolError(str(error)) from error


def fabric_with(message: pb.Membership, current: Fabric) -> Fabric:
    """The fabric, where this node's number or the way to fan out changes. Raises RemoteProtocolError."""
    said = pb.Fabric(fanout=message.fanout, unasked_weight=message.unasked_weight)
    if not message.fanout:
        said = pb.Fabric(fanout=pb.Fanout.ValueType(current.fanout.value), unasked_weight=current.unasked_weight)
    return fabric_of(said, current, member_of(message))


def _fanout(code: int) -> Fanout:
    """Raises ValueError for one that this agent does not know."""
    try:
        return Fanout(code or Fanout.SWITCH.value)
    except ValueError:
        raise ValueError(f"the controller's fabric.fanout ({code}) is unknown here: upgrade this agent") from None


def member_of(message: pb.Welcome | pb.Membership) -> Member | None:
    """This node's number, if it has one that there can be."""
    known = message.HasField("member") and message.member < MEMBERS_MAX
    return Member(message.member) if known else None


def integrity_of(welcome: pb.Welcome, demanded: Integrity | None) -> Integrity:
    """How the fabric's chunks are digested. Raises VersionSkewError for another way than `demanded`, or than ours."""
    said = algorithms_of([welcome.fabric.integrity])
    if not said:
        raise VersionSkewError(
            f"the controller (kvcast {welcome.version or 'of an unknown version'}) names no digest of chunks that this"
            f" agent (kvcast {__version__}) knows: upgrade the older of the two"
        )
    (integrity,) = said
    if demanded is not None and integrity is not demanded:
        raise VersionSkewError(
            f"the controller sets integrity to {integrity.value}, data.integrity of this agent is {demanded.value}:"
            " change one of them"
        )
    return integrity


def _welcomed(welcome: pb.Welcome, fabric: Fabric, refusals: Refusals, integrity: Integrity) -> Welcomed:
    pool_ip = welcome.fabric.pool_ip
    return Welcomed(
        controller=welcome.controller,
        node=welcome.node,
        member=next(iter(refusals.taken("member", [welcome], _member)), None),
        segment_bytes=fabric.segment_bytes,
        pool_address=next(iter(refusals.taken("pool_address", [pool_ip] if pool_ip else [], address_of)), None),
        interest_ttl_ns=welcome.fabric.interest_ttl_ms * 1_000_000,
        heartbeat_s=welcome.heartbeat_ms / 1000,
        integrity=integrity,
        takes_loads=welcome.takes_loads,
        takes_look_ups=welcome.takes_look_ups,
        follows=welcome.follows,
        fanout=fabric.fanout,
        unasked_weight=fabric.unasked_weight,
    )


def _switch_state(message: pb.SwitchState, refusals: Refusals) -> SwitchStateGiven:
    here = refusals.taken("here", [message.here] if message.here else [], chunk_key)
    return SwitchStateGiven(message.epoch if message.present else None, next(iter(here), None))


def _member(message: pb.Welcome | pb.Membership | pb.Node) -> Member | None:
    if not message.HasField("member"):
        return None
    if message.member >= MEMBERS_MAX:
        raise RecordError(f"member {message.member}: a switch has members 0 to {MEMBERS_MAX - 1}")
    return Member(message.member)


def task_of(message: pb.Task, refusals: Refusals) -> Task:
    """A task. One with a key that is none is refused whole, and its controller is told."""
    timeout_s = (message.timeout_ms or limits.TASK_TIMEOUT_MS) / 1000
    try:
        work = _work_of(message)
    except RecordError as error:
        refusals.add("task", str(error))
        work = RefusedWork(str(error))
    return Task(message.task, work, timeout_s, message.foreground)


def _work_of(message: pb.Task) -> Work:
    kind = message.WhichOneof("work")
    if kind == "fill":
        fill = message.fill
        return FillWork(chunk_key(fill.key), fill.segments, fill.cast_too, fill.readers)
    if kind == "fetch":
        return FetchWork(_keys_of(message.fetch.keys), message.fetch.pin)
    if kind == "drop":
        return DropWork(_keys_of(message.drop.keys))
    if kind == "recheck":
        return RecheckWork(_keys_of(message.recheck.keys))
    if kind == "pin":
        return PinWork(_keys_of(message.pin.keys))
    if kind == "unpin":
        return UnpinWork(_keys_of(message.unpin.keys))
    return RefusedWork("this agent does not know the task: update it")


def _keys_of(raw: Iterable[bytes]) -> tuple[ChunkKey, ...]:
    return tuple(map(chunk_key, raw))


def delta_of(message: pb.DirectoryDelta, refusals: Refusals, integrity: Integrity = Integrity.BLAKE3) -> Delta:
    """A change of the directory of a fabric with this `integrity`, without the records that are refused."""
    namespaces = message.namespaces
    return Delta(
        message.sequence,
        message.snapshot,
        message.snapshot_end,
        refusals.taken("node", message.nodes, _node),
        tuple(message.nodes_gone),
        refusals.taken("chunk", message.chunks, lambda chunk: _chunk(chunk, refusals, integrity, namespaces))
        + _chunks(message.columns, refusals, integrity, namespaces),
        refusals.taken("chunk_gone", message.chunks_gone, chunk_key),
        tuple(_claims(one, refusals) for one in message.claims),
        tuple((load.node, HolderLoad(load.queued_bytes, load.readers)) for load in message.loads),
        message.after if message.HasField("after") else None,
    )


def _claims(message: pb.NodeClaims, refusals: Refusals) -> NodeClaims:
    runs = refusals.taken("claim", message.claims.made, partial(_claim_run, refusals))
    withdrawn = refusals.taken("withdrawn", message.claims.withdrawn, chunk_key)
    return NodeClaims(message.node, tuple(one for run in runs for one in run), withdrawn)


def _claim_run(refusals: Refusals, claim: pb.Claim) -> tuple[ClaimedChunk, ...]:
    if len(claim.keys) != len(claim.eta_ms):
        raise RecordError(f"a claim of {len(claim.keys)} keys with {len(claim.eta_ms)} times")
    check_size(claim.size_bytes)
    return refusals.taken(
        "claim",
        zip(claim.keys, claim.eta_ms, strict=True),
        lambda one: ClaimedChunk(chunk_key(one[0]), claim.size_bytes, one[1] / 1000),
    )


def _node(message: pb.Node) -> NodeEntry:
    return NodeEntry(
        message.node,
        message.name,
        NO_ADDRESS if len(message.data_ip) == 16 else address_of(message.data_ip),
        message.read_endpoint,
        _member(message),
        message.draining,
        message.unreached,
        tuple(message.rail_endpoints[: RAILS_MAX - 1]),
        message.rack,
    )


def _digest(raw: bytes, integrity: Integrity) -> Digest:
    """A digest, refused unless it is of the fabric's kind: another kind may be easier to forge."""
    try:
        digest = parse_digest(raw)
    except ValueError as error:
        raise RecordError(str(error)) from None
    if algorithm_of(digest) is not integrity:
        raise RecordError(f"a digest by {algorithm_of(digest).value}, the fabric's are by {integrity.value}")
    return digest


def _chunk(message: pb.ChunkEntry, refusals: Refusals, integrity: Integrity, namespaces: Sequence[str]) -> ChunkEntry:
    key = chunk_key(message.key)
    parent = chunk_key(message.parent, "parent") if message.parent else None
    namespace = namespaces[message.namespace_index] if message.namespace_index < len(namespaces) else ""
    check_chunk(key, parent, message.size_bytes, message.position, namespace)
    return ChunkEntry(
        key,
        parent,
        message.size_bytes,
        _digest(message.digest, integrity),
        message.position,
        tuple(message.holders),
        message.served,
        message.pinned,
        message.value,
        tuple(message.disk_holders),
        namespace,
        refusals.taken("variant", message.others, partial(_variant, integrity)) if message.others else (),
    )


def _chunks(
    columns: pb.ChunkColumns, refusals: Refusals, integrity: Integrity, namespaces: Sequence[str]
) -> tuple[ChunkEntry, ...]:
    try:
        records = unpack(columns, namespaces, integrity, lambda _, why: refusals.add("chunk", why))
    except RecordError as error:
        refusals.add("columns", str(error))
        return ()
    return tuple(
        ChunkEntry(
            one.key,
            one.parent,
            one.size_bytes,
            one.digest,
            one.position,
            one.holders,
            bool(one.flags & SERVED),
            bool(one.flags & PINNED),
            one.value,
            one.disk_holders,
            one.namespace,
        )
        for one in records
    )


def _variant(integrity: Integrity, message: pb.Variant) -> Variant:
    check_size(message.size_bytes)
    return Variant(message.size_bytes, _digest(message.digest, integrity), tuple(message.holders))


ControllerEffect: TypeAlias = (
    effects.Announce
    | effects.ReportUsage
    | effects.ReportLoad
    | effects.ReportClaims
    | effects.LookUp
    | effects.ReportInterests
    | effects.ReportTaskProgress
    | effects.ReportTaskEnd
    | effects.ReportBadCopy
    | effects.ReportPaths
)
"""Effects that become messages to the controller; a heartbeat also needs figures of the transport."""


def message_of(effect: ControllerEffect, *, columns: bool = False) -> pb.FromAgent:
    """The message that carries an effect; `columns`: to a controller that takes announcements so."""
    match effect:
        case effects.Announce():
            return pb.FromAgent(announce=(_announced_in_columns if columns else _announcement)(effect))
        case effects.ReportUsage():
            return pb.FromAgent(usage=_usage(effect))
        case effects.ReportLoad(load):
            return pb.FromAgent(load=pb.HolderLoad(queued_bytes=load.queued_bytes, readers=load.readers))
        case effects.ReportClaims(made, withdrawn):
            return pb.FromAgent(claims=pb.Claims(made=_runs(made), withdrawn=withdrawn))
        case effects.LookUp(number, keys, released, root):
            said = pb.LookUp(number=number, keys=b"".join(keys), released=b"".join(released), root=root or b"")
            return pb.FromAgent(look_up=said)
        case effects.ReportInterests(patterns):
            return pb.FromAgent(interests=interests_of(patterns))
        case effects.ReportTaskProgress(task, done, total, moved_bytes):
            return pb.FromAgent(task_progress=pb.TaskProgress(task=task, done=done, total=total, bytes=moved_bytes))
        case effects.ReportTaskEnd(task, status, done, moved_bytes, failed_keys, detail):
            result = pb.TaskResult(
                task=task,
                status=pb.TaskResult.Status.Value(status.name),
                done=done,
                bytes=moved_bytes,
                failed_keys=failed_keys,
                detail=detail,
            )
            return pb.FromAgent(task_result=result)
        case effects.ReportBadCopy(key, _, holder, _, expected, found, from_switch):
            bad = pb.BadCopy(key=key, holder=holder, expected=expected, found=found, from_switch=from_switch)
            return pb.FromAgent(bad_copy=bad)
        case effects.ReportPaths(nodes, reached):
            return pb.FromAgent(paths=pb.Paths(nodes=nodes, reached=reached))
        case _:
            assert_never(effect)


def heartbeat_of(
    effect: effects.BeatHeart, sent_bytes: int = 0, received_bytes: int = 0, drops: Mapping[str, int] | None = None
) -> pb.FromAgent:
    """A heartbeat; `sent_bytes` and `received_bytes`: over the network since the agent started; `drops`: what the
    transport refused, by reason."""
    usage, gate = effect.usage, effect.gate
    verdict = None
    if gate.last is not None:
        verdict = pb.GateVerdict(choice=gate.last.choice.value, expected_us=_micros(gate.last.expected_s))
        if gate.last.recompute_s is not None:
            verdict.recompute_us = _micros(gate.last.recompute_s)
    return pb.FromAgent(
        heartbeat=pb.Heartbeat(
            pool_used_bytes=usage.size_bytes - usage.free_bytes,
            pool_pinned_bytes=usage.pinned_bytes,
            sent_bytes=sent_bytes,
            received_bytes=received_bytes,
            directory_sequence=effect.directory_sequence,
            tasks_running=effect.tasks_running,
            chunks=usage.chunks_count,
            next_victims=effect.next_victims,
            disk_used_bytes=effect.disk_used_bytes,
            arriving=[
                pb.Arriving(key=one.key, size_bytes=one.size_bytes, left_bytes=one.left_bytes)
                for one in effect.arriving
            ],
            gate_decisions=gate.decisions,
            gate_saved_ms=round(gate.saved_s * 1e3),
            gate_verdict=verdict,
            ways=[
                pb.WayChoice(
                    readers=one.readers,
                    read=one.way is Way.READ,
                    read_bytes_per_s=one.read_bytes_per_s,
                    fanout_bytes_per_s=one.fanout_bytes_per_s,
                )
                for one in gate.ways
            ],
            drops=dict(islice((drops or {}).items(), limits.DROP_REASONS_TOLD)),
        )
    )


def _micros(seconds: float) -> int:
    """Whole microseconds; what is expected never to end takes as many as the message can say."""
    return min(round(seconds * 1e6), 0xFFFF_FFFF) if seconds < 0xFFFF else 0xFFFF_FFFF


def _announcement(effect: effects.Announce) -> pb.Announce:
    kept = set(effect.pinned)
    namespaces: dict[str, int] = {}
    records = [
        pb.ChunkRecord(
            key=chunk.key,
            parent=chunk.parent or b"",
            size_bytes=chunk.size_bytes,
            digest=chunk.digest,
            position=chunk.position,
            namespace_index=namespaces.setdefault(chunk.namespace, len(namespaces)),
            pinned=chunk.key in kept,
            on_disk=effect.on_disk,
        )
        for chunk in effect.added
    ]
    return pb.Announce(
        added=records,
        removed=() if effect.on_disk else effect.removed,
        removed_from_disk=effect.removed if effect.on_disk else (),
        namespaces=list(namespaces),
        snapshot=effect.snapshot,
        snapshot_end=effect.snapshot_end,
    )


def _announced_in_columns(effect: effects.Announce) -> pb.Announce:
    kept = set(effect.pinned)
    chunks, namespaces = effect.added, dict.fromkeys(chunk.namespace for chunk in effect.added)
    numbers = {namespace: number for number, namespace in enumerate(namespaces)}
    said = pb.Announce(
        removed=() if effect.on_disk else effect.removed,
        removed_from_disk=effect.removed if effect.on_disk else (),
        namespaces=list(namespaces),
        snapshot=effect.snapshot,
        snapshot_end=effect.snapshot_end,
    )
    if chunks:
        pack(
            said.columns,
            keys=b"".join(chunk.key for chunk in chunks),
            parents=b"".join(chunk.parent or ROOT_KEY for chunk in chunks),
            digests=b"".join(chunk.digest for chunk in chunks),
            sizes=[chunk.size_bytes for chunk in chunks],
            positions=[chunk.position for chunk in chunks],
            namespace_indexes=[numbers[chunk.namespace] for chunk in chunks],
            flags=bytes(PINNED * (chunk.key in kept) | ON_DISK * effect.on_disk for chunk in chunks),
        )
    return said


def interests_of(patterns: tuple[str, ...] | None) -> pb.Interests:
    """Namespaces of which the node wants to be told."""
    return pb.Interests(namespaces=patterns or (), all=patterns is None)


def _runs(made: Sequence[ClaimedChunk]) -> list[pb.Claim]:
    """Chunks of one size go together."""
    runs: list[pb.Claim] = []
    for chunk in made:
        if not runs or runs[-1].size_bytes != chunk.size_bytes:
            runs.append(pb.Claim(size_bytes=chunk.size_bytes))
        runs[-1].keys.append(chunk.key)
        runs[-1].eta_ms.append(int(chunk.eta_s * 1000))
    return runs


def _usage(effect: effects.ReportUsage) -> pb.Usage:
    fetches = [
        pb.FetchEvent(
            key=use.key,
            source=pb.SOURCE_MISS if use.source is None else pb.Source.ValueType(use.source),
            bytes=use.network_bytes,
            waited_us=min(int(use.waited_s * 1e6), 0xFFFF_FFFF),
            age_ms=(effect.at_ns - use.at_ns) // 1_000_000,
            holder=use.holder,
        )
        for use in effect.uses
    ]
    hints = [pb.ReuseHint(key=one.key, kind=_HINTS[one.hint], within_ms=one.within_ms) for one in effect.hints]
    measurements = [
        pb.SourceMeasurement(
            source=pb.SourceMeasurement.From.Value(f"FROM_{one.source.name}"),
            bytes=one.size_bytes,
            took_us=max(1, round(one.seconds * 1e6)),
        )
        for one in effect.measurements
    ]
    past = [_past_fetches(key, counted) for key, counted in effect.past]
    warms = [
        pb.WarmWish(namespace=one.namespace, bytes=one.size_bytes, nodes=one.nodes, wait_ms=one.wait_ms)
        for one in effect.warms
    ]
    return pb.Usage(fetches=fetches, hints=hints, measurements=measurements, past=past, warms=warms)


def _past_fetches(key: ChunkKey, past: PastFetches) -> pb.PastFetches:
    told = pb.PastFetches(key=key, touches=past.touches, weight=past.weight, age_ms=_millis(past.idle_s))
    if past.gap_s is not None:
        told.gap_ms = _millis(past.gap_s)
    return told


def _millis(seconds: float) -> int:
    """Whole milliseconds, as many as the message can say."""
    return min(round(seconds * 1e3), 0xFFFF_FFFF)
