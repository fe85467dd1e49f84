"""A switch behind P4Runtime (p4switch, bmv2, Tofino), through finsy.

Owns the session: connecting again and again, arbitration, the reports that come. What entries look like is the business
of the codec of the program that the switch runs, and of the modules named after the P4 controls; names, ids and sizes
come from its P4Info.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import finsy
import grpc

from controlplane.switch.codec import UnsuitableProgramError, V1ModelCodec
from controlplane.switch.entries import SwitchContents, contents
from controlplane.switch.target import (
    Down,
    Standby,
    SwitchCounters,
    SwitchEvent,
    SwitchUnavailableError,
    Up,
    Update,
)

LOG = logging.getLogger(__name__)

DIGEST_LISTS_QUEUED_MAX = 1_000
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
    """`SwitchTarget` for whatever speaks P4Runtime."""

    def __init__(self, options: P4RuntimeOptions, codec: V1ModelCodec) -> None:
        """`codec`: for the program that the switch runs."""
        self._options = options
        self._codec = codec
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
            return await read_contents(switch, self._codec)

    async def write(self, updates: Sequence[Update]) -> dict[int, str]:
        refused: dict[int, str] = {}
        # P4Runtime lets a switch reorder what is in one request, so what depends on each other goes in several.
        for _, batch in itertools.groupby(enumerate(updates), key=lambda one: (one[1].operation, *_kind(one[1]))):
            refused |= await self._write_batch(list(batch))
        return refused

    async def counters(self) -> SwitchCounters:
        async with self._calling() as switch:
            return await self._codec.counters(functools.partial(_read, switch))

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
                    facts = self._codec.facts(switch.p4info)
                    digests = asyncio.create_task(_forward_reports(switch, self._codec, sink))
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

    async def _write_batch(self, updates: Sequence[tuple[int, Update]]) -> dict[int, str]:
        async with self._calling() as switch:
            entities: list[Any] = []
            indexes: list[int] = []
            """Which update each entity is of."""
            for index, update in updates:
                encoded = self._codec.encode(update, switch.p4info)
                entities += encoded
                indexes += [index] * len(encoded)
            try:
                await switch.write(entities)
            except finsy.P4ClientError as error:
                if not error.details:
                    raise
                return {indexes[at]: f"{one.canonical_code.name}: {one.message}" for at, one in error.details.items()}
            return {}


class _Role(enum.Enum):
    NONE = "none"
    PRIMARY = "primary"
    STANDBY = "standby"


async def read_contents(switch: finsy.Switch, codec: V1ModelCodec) -> SwitchContents:
    """Everything that the control plane owns in a switch, primary or not. Raises finsy.P4ClientError."""
    found = await _read(switch, codec.queries(switch.p4info))
    for digest in codec.digests:
        found += await _read_subscription(switch, digest)
    return contents(*codec.decode(found))


async def _forward_reports(switch: finsy.Switch, codec: V1ModelCodec, sink: Callable[[SwitchEvent], None]) -> None:
    async def forward(digest: str, decode: Callable[[Mapping[str, Any]], SwitchEvent]) -> None:
        async for reports in switch.read_digests(digest, queue_size=DIGEST_LISTS_QUEUED_MAX):
            for report in reports:
                sink(decode(report))
            await switch.write([reports.ack()])

    async with asyncio.TaskGroup() as group:
        for digest, decode in codec.digests.items():
            group.create_task(forward(digest, decode))


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _read(switch: finsy.Switch, queries: Sequence[Any]) -> list[Any]:
    entities: Any = switch.read(list(queries))
    return [found async for found in entities]


async def _read_subscription(switch: finsy.Switch, digest: str) -> list[Any]:
    try:
        return await _read(switch, [finsy.P4DigestEntry(digest)])
    except finsy.P4ClientError as error:
        # bmv2 answers a read of a digest that nobody has inserted yet with an error instead of nothing.
        if error.code is finsy.GRPCStatusCode.NOT_FOUND or "not configured" in error.message:
            return []
        raise


def _kind(update: Update) -> tuple[str]:
    return (update.entry.identity[0],)


def _one_line(error: BaseException) -> str:
    text = error.message if isinstance(error, finsy.P4ClientError) else str(error)
    return " ".join((text or type(error).__name__).split())
