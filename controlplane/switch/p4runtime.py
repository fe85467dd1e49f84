"""A switch behind P4Runtime (p4switch, bmv2), through finsy.

Owns the session: connecting again and again, arbitration, the subscription to heat reports. What entries look like is
the business of the modules named after the P4 controls; names, ids and sizes come from the P4Info of the program that
the switch runs.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import finsy
import grpc

from controlplane.switch import admission, chunk_cache, drops, fabric, forwarding, heat, replication
from controlplane.switch.entries import (
    AddressEntry,
    CloneSessionEntry,
    EgressMemberEntry,
    Entry,
    FabricEntry,
    FillingEntry,
    ForeignEntry,
    GroupEntry,
    HeatSubscriptionEntry,
    PortMemberEntry,
    ReplicateToGroupEntry,
    ReplicateToPortEntry,
    ServingEntry,
    SwitchContents,
    contents,
)
from controlplane.switch.target import (
    Down,
    Operation,
    Standby,
    SwitchCounters,
    SwitchEvent,
    SwitchFacts,
    SwitchUnavailableError,
    Up,
    Update,
)
from kvproto.limits import SEGMENT_BLOCK_BYTES

LOG = logging.getLogger(__name__)

DIGEST_LISTS_QUEUED_MAX = 1_000
"""Bytes of one cell of the register slot_block."""
_HANDSHAKE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class P4RuntimeOptions:
    """How to reach one switch."""

    address: str
    device_id: int = 1
    election_id: int = 10
    p4info: Path | None = None
    program: Path | None = None
    """Pushed together with `p4info`; without them the program that the switch runs is used as it is."""
    reconnect_s: float = 0.5


class P4RuntimeTarget:
    """`SwitchTarget` for v1model programs."""

    def __init__(self, options: P4RuntimeOptions) -> None:
        self._options = options
        self._switch: finsy.Switch | None = None
        """Set while this controller is primary and the program is known."""

    @property
    def address(self) -> str:
        return self._options.address

    async def run(self, sink: Callable[[SwitchEvent], None]) -> None:
        told = ""
        while True:
            reason = await self._session(sink)
            if reason != told:
                LOG.warning("switch %s: %s", self.address, reason)
                told = reason
            await asyncio.sleep(self._options.reconnect_s)

    async def read(self) -> SwitchContents:
        async with self._calling() as switch:
            return await read_contents(switch)

    async def write(self, updates: Sequence[Update]) -> dict[int, str]:
        refused: dict[int, str] = {}
        # P4Runtime lets a switch reorder what is in one request, so what depends on each other goes in several.
        for _, batch in itertools.groupby(enumerate(updates), key=lambda one: (one[1].operation, *_kind(one[1]))):
            indexed = list(batch)
            problems = await self._write_batch([_encode(update) for _, update in indexed])
            refused |= {indexed[at][0]: problem for at, problem in problems.items()}
        return refused

    async def counters(self) -> SwitchCounters:
        async with self._calling() as switch:
            dropped = drops.decode(await _read(switch, drops.queries()))
            packets = {}
            for found in await _read(switch, [finsy.P4DirectCounterEntry(chunk_cache.COUNTER)]):
                if found.table_entry is not None and found.table_entry.match:
                    packets[chunk_cache.key_of(found.table_entry)] = found.packet_count
            return SwitchCounters(dropped, packets)

    # -- the session

    async def _session(self, sink: Callable[[SwitchEvent], None]) -> str:
        """One connection from beginning to end; returns why it ended."""
        options = finsy.SwitchOptions(
            p4info=self._options.p4info,
            p4blob=self._options.program,
            device_id=self._options.device_id,
            initial_election_id=self._options.election_id,
        )
        switch = finsy.Switch("kvcast", self.address, options)
        changes: asyncio.Queue[finsy.SwitchEvent] = asyncio.Queue()
        for event in (finsy.SwitchEvent.CHANNEL_READY, finsy.SwitchEvent.CHANNEL_DOWN, finsy.SwitchEvent.BECOME_BACKUP):
            switch.ee.on(event, lambda *_, event=event: changes.put_nowait(event))
        try:
            async with asyncio.timeout(_HANDSHAKE_TIMEOUT_S):
                await switch.__aenter__()
        except (finsy.P4ClientError, RuntimeError, ValueError, OSError, TimeoutError) as error:
            return f"cannot be reached or programmed: {_one_line(error)}"
        reason = "connection lost"
        role = _Role.NONE
        digests: asyncio.Task[None] | None = None
        try:
            while (change := await changes.get()) is not finsy.SwitchEvent.CHANNEL_DOWN:
                if change is finsy.SwitchEvent.CHANNEL_READY and switch.is_primary and role is not _Role.PRIMARY:
                    facts = facts_of(switch.p4info)
                    digests = asyncio.create_task(_forward_heat(switch, sink))
                    self._switch, role = switch, _Role.PRIMARY
                    sink(Up(facts))
                elif not switch.is_primary and role is not _Role.STANDBY:
                    self._switch = None
                    await _end(digests)
                    if role is _Role.PRIMARY:
                        sink(Down("another controller became primary"))
                    role = _Role.STANDBY
                    sink(Standby())
        except (finsy.P4ClientError, UnsuitableProgramError) as error:
            reason = _one_line(error)
        finally:
            self._switch = None
            await _end(digests)
            await switch.__aexit__(None, None, None)
            if role is _Role.PRIMARY:
                sink(Down(reason))
        return reason

    @asynccontextmanager
    async def _calling(self) -> AsyncIterator[finsy.Switch]:
        """The switch; failures of a call as a whole become SwitchUnavailableError."""
        switch = self._switch
        if switch is None:
            raise SwitchUnavailableError(f"no session with switch {self.address}")
        try:
            yield switch
        except (finsy.P4ClientError, AssertionError, asyncio.InvalidStateError, grpc.RpcError) as error:
            # finsy asserts that its channel is open: it closed under us.
            raise SwitchUnavailableError(f"switch {self.address}: {_one_line(error)}") from error

    async def _write_batch(self, updates: list[Any]) -> dict[int, str]:
        async with self._calling() as switch:
            try:
                await switch.write(updates)
            except finsy.P4ClientError as error:
                if not error.details:
                    raise
                return {at: f"{one.canonical_code.name}: {one.message}" for at, one in error.details.items()}
            return {}


class _Role(enum.Enum):
    NONE = "none"
    PRIMARY = "primary"
    STANDBY = "standby"


class UnsuitableProgramError(Exception):
    """What the switch runs is not the kvcast program."""


def facts_of(schema: finsy.P4Schema) -> SwitchFacts:
    """Sizes of the running program. Raises UnsuitableProgramError if it lacks anything that we program."""
    if not schema.exists:
        raise UnsuitableProgramError("it runs no program: name one in switch.p4info and switch.program")
    try:
        for table in (
            fabric.TABLE,
            admission.TABLE,
            forwarding.TABLE,
            chunk_cache.TABLE,
            replication.REPLICATE_TABLE,
            replication.EGRESS_TABLE,
        ):
            schema.tables[table]
        schema.digests[heat.DIGEST]
        for counter in drops.COUNTERS:
            schema.counters[counter]
        slots = schema.registers["slot_owner"].size
        blocks = schema.registers["slot_block"].size
        return SwitchFacts(
            slots=slots,
            segment_bytes=blocks * SEGMENT_BLOCK_BYTES // slots,
            chunks_max=schema.tables[chunk_cache.TABLE].size,
            groups_max=schema.tables[replication.REPLICATE_TABLE].size,
        )
    except (ValueError, KeyError, ZeroDivisionError) as error:
        raise UnsuitableProgramError(f"it does not run the kvcast program: {_one_line(error)}") from error


async def read_contents(switch: finsy.Switch) -> SwitchContents:
    """Everything that the control plane owns in a switch, primary or not. Raises finsy.P4ClientError."""
    queries: list[Any] = [
        *fabric.queries(),
        *admission.queries(),
        *forwarding.queries(),
        *chunk_cache.queries(),
        *replication.queries(),
    ]
    found = await _read(switch, queries) + await _read_subscription(switch)
    return contents(*[entry for one in found if (entry := _decode(one)) is not None])


async def _forward_heat(switch: finsy.Switch, sink: Callable[[SwitchEvent], None]) -> None:
    async for reports in switch.read_digests(heat.DIGEST, queue_size=DIGEST_LISTS_QUEUED_MAX):
        for report in reports:
            sink(heat.decode_report(report))
        await switch.write([reports.ack()])


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _read(switch: finsy.Switch, queries: Sequence[Any]) -> list[Any]:
    entities: Any = switch.read(list(queries))
    return [found async for found in entities]


async def _read_subscription(switch: finsy.Switch) -> list[Any]:
    try:
        return await _read(switch, heat.queries())
    except finsy.P4ClientError as error:
        # bmv2 answers a read of a digest that nobody has inserted yet with an error instead of nothing.
        if error.code is finsy.GRPCStatusCode.NOT_FOUND or "not configured" in error.message:
            return []
        raise


def _kind(update: Update) -> tuple[str]:
    return (update.entry.identity[0],)


def _encode(update: Update) -> Any:
    """A finsy entity marked as insertion (+), modification (~) or deletion (-)."""
    if isinstance(update.entry, FabricEntry):
        # A default action is always there, so it is only ever modified.
        absent = update.operation is Operation.DELETE
        return ~(fabric.encode_absent() if absent else fabric.encode(update.entry))
    entity = _encode_entry(update.entry)
    match update.operation:
        case Operation.INSERT:
            return +entity
        case Operation.MODIFY:
            return ~entity
        case Operation.DELETE:
            return -entity


def _encode_entry(entry: Entry) -> Any:
    match entry:
        case PortMemberEntry():
            return admission.encode(entry)
        case AddressEntry():
            return forwarding.encode(entry)
        case FillingEntry() | ServingEntry():
            return chunk_cache.encode(entry)
        case (
            ReplicateToGroupEntry() | ReplicateToPortEntry() | EgressMemberEntry() | GroupEntry() | CloneSessionEntry()
        ):
            return replication.encode(entry)
        case FabricEntry():
            return fabric.encode(entry)
        case HeatSubscriptionEntry():
            return heat.encode(entry)
        case ForeignEntry():
            return _encode_foreign(entry)


def _encode_foreign(entry: ForeignEntry) -> Any:
    """Enough of an entry to delete it: its table and match."""
    if entry.table == "clone_session":
        return finsy.P4CloneSessionEntry(_number(entry.match))
    fields = {
        admission.TABLE: "ingress_port",
        forwarding.TABLE: "dst",
        chunk_cache.TABLE: "key",
        replication.REPLICATE_TABLE: "members",
        replication.EGRESS_TABLE: "egress_port",
    }
    match = finsy.P4TableMatch({fields[entry.table]: _number(entry.match)})
    return finsy.P4TableEntry(entry.table, match=match)


def _number(match: object) -> int:
    if isinstance(match, bytes):
        return int.from_bytes(match, "big")
    if isinstance(match, int):
        return match
    raise TypeError(f"a match is bytes or int, not {match!r}")


def _decode(found: Any) -> Entry | None:
    if isinstance(found, finsy.P4TableEntry):
        match found.table_id:
            case fabric.TABLE:
                return fabric.decode(found)
            case admission.TABLE:
                return admission.decode(found)
            case forwarding.TABLE:
                return forwarding.decode(found)
            case chunk_cache.TABLE:
                return chunk_cache.decode(found)
    if isinstance(found, finsy.P4DigestEntry):
        return heat.decode(found)
    return replication.decode(found)


def _one_line(error: BaseException) -> str:
    text = error.message if isinstance(error, finsy.P4ClientError) else str(error)
    return " ".join((text or type(error).__name__).split())
