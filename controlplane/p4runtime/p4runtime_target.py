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
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import finsy
import grpc
from finsy.p4entity import encode_updates

from controlplane.core.switch.entries import Report, SwitchContents, contents
from controlplane.core.switch.target import (
    Down,
    Standby,
    SwitchCounters,
    SwitchEvent,
    SwitchUnavailableError,
    Up,
    Update,
)
from controlplane.p4runtime.codec import UnsuitableProgramError, V1ModelCodec
from controlplane.p4runtime.reports import DIGESTS, READERS
from kvdaemon.identity import Identity, Role
from kvdaemon.tls import TlsError, load
from kvdaemon.tls_settings import TlsSettings
from kvdaemon.what_answers import what_answers, why_not

LOG = logging.getLogger(__name__)

DIGEST_LISTS_QUEUED_MAX = 1_000
HANDSHAKE_TIMEOUT_S = 5.0
_NO_P4RUNTIME = "a gRPC server without P4Runtime answers there: is it a kvcast-controller? Correct switch.address"


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
    answer_s: float = 5.0
    """Who has not answered a read or a write by then is taken for frozen: the session ends and another one begins."""
    tls: TlsSettings | None = None
    """None: plainly."""
    server_name: str = ""
    """The DNS name that the switch's certificate has to have; empty: switch.TRUST_DOMAIN."""


class P4RuntimeTarget:
    """`SwitchTarget` for whatever speaks P4Runtime."""

    def __init__(self, options: P4RuntimeOptions, codec: V1ModelCodec) -> None:
        """`codec`: for the program that the switch runs."""
        self._options = options
        self._codec = codec
        self._election_id = options.election_id
        """Of the next session: above those of all sessions before whose place this controller takes."""
        self._switch: finsy.Switch | None = None
        """Set while this controller is primary and the program is known."""
        self._give_up: Callable[[str], None] = lambda reason: None
        """Ends the session that there is."""

    @property
    def address(self) -> str:
        """See `SwitchTarget`."""
        return self._options.address

    async def run(self, sink: Callable[[SwitchEvent], None], election_id: int | None = None) -> None:
        """See `SwitchTarget`."""
        self._election_id = self._options.election_id if election_id is None else election_id
        told = ""
        while True:
            reason = await self._session(sink)
            if reason is None:
                continue
            if reason != told:
                LOG.warning("switch %s: %s", self.address, reason)
                told = reason
            await asyncio.sleep(self._options.reconnect_s)

    async def read(self) -> SwitchContents:
        """See `SwitchTarget`."""
        async with self._calling() as switch:
            return await read_contents(switch, self._codec)

    async def write(self, updates: Sequence[Update]) -> dict[int, str]:
        """See `SwitchTarget`."""
        refused: dict[int, str] = {}
        # P4Runtime lets a switch reorder the updates of one request, so updates that depend on each other are split.
        for _, batch in itertools.groupby(
            enumerate(updates), key=lambda one: (one[1].operation, one[1].entry.identity[0])
        ):
            refused |= await self._write_batch(list(batch))
        return refused

    async def counters(self) -> SwitchCounters:
        """See `SwitchTarget`."""
        async with self._calling() as switch:
            return await self._codec.counters(functools.partial(_read, switch))

    # -- the session

    async def _session(self, sink: Callable[[SwitchEvent], None]) -> str | None:
        """One connection from beginning to end; returns why it ended. None: at once another one, with a higher id.

        A switch takes every write that names its primary's election id, whoever sends it. finsy takes a primary's place
        under that primary's own id: one that only slept would go on writing. So this controller claims a higher one.
        """
        try:
            credentials = self._credentials()
        except TlsError as error:
            return str(error)
        options = finsy.SwitchOptions(
            channel_credentials=credentials,
            p4info=self._options.p4info,
            p4blob=self._options.program,
            device_id=self._options.device_id,
            initial_election_id=self._election_id,
        )
        switch = finsy.Switch("kvcast", self.address, options)
        changes: asyncio.Queue[finsy.SwitchEvent] = asyncio.Queue()
        reason = "connection lost"

        def give_up(why: str) -> None:
            nonlocal reason
            reason = why
            changes.put_nowait(finsy.SwitchEvent.CHANNEL_DOWN)

        def reports_ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                give_up("reports do not come any more")

        self._give_up = give_up
        for event in (finsy.SwitchEvent.CHANNEL_READY, finsy.SwitchEvent.CHANNEL_DOWN, finsy.SwitchEvent.BECOME_BACKUP):
            switch.ee.on(event, lambda *_, event=event: changes.put_nowait(event))
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                await switch.__aenter__()
        except (finsy.P4ClientError, RuntimeError, ValueError, OSError, TimeoutError) as error:
            return f"cannot be reached or programmed: {await self._problem(credentials, error)}"
        role = _Role.NONE
        digests: asyncio.Task[None] | None = None
        try:
            while (change := await changes.get()) is not finsy.SwitchEvent.CHANNEL_DOWN:
                if change is finsy.SwitchEvent.CHANNEL_READY and switch.is_primary and role is not _Role.PRIMARY:
                    if switch.election_id != self._election_id or role is _Role.STANDBY:
                        self._election_id = switch.primary_id + 1
                        return None
                    facts = self._codec.facts(switch.p4info)
                    digests = asyncio.create_task(_forward_reports(switch, self._codec, sink))
                    # Without reports nothing is learned any more: what ended them ends the session.
                    digests.add_done_callback(reports_ended)
                    self._switch, role = switch, _Role.PRIMARY
                    sink(Up(facts))
                elif not switch.is_primary and role is not _Role.STANDBY:
                    self._switch = None
                    await _end(digests)
                    digests = None
                    if role is _Role.PRIMARY:
                        sink(Down("another controller became primary"))
                    role = _Role.STANDBY
                    sink(Standby())
            if digests is not None and digests.done() and (failure := digests.exception()) is not None:
                _raise_defects(failure)
        except (finsy.P4ClientError, UnsuitableProgramError) as error:
            reason = _one_line(error)
        finally:
            self._switch = None
            await _end(digests)
            await switch.__aexit__(None, None, None)
            if role is _Role.PRIMARY:
                sink(Down(reason))
        return reason

    def _credentials(self) -> finsy.GRPCCredentialsTLS | None:
        """For a session: the files as they are now. Raises TlsError."""
        if self._options.tls is None:
            return None
        loaded = load(self._options.tls, Role.CONTROLLER)
        name = self._options.server_name or Identity(loaded.identity.trust_domain, Role.SWITCH).server_name
        return finsy.GRPCCredentialsTLS(
            cacert=loaded.ca, cert=loaded.cert, private_key=loaded.key, target_name_override=name
        )

    async def _problem(self, credentials: finsy.GRPCCredentialsTLS | None, error: Exception) -> str:
        """What an attempt failed of, in words: what listens there is asked where gRPC does not say it."""
        if credentials is not None and self._options.tls is not None:
            name = credentials.target_name_override
            found = await asyncio.to_thread(why_not, self.address, self._options.tls, name)
            if found:
                return found
        if isinstance(error, TimeoutError):
            return f"it did not answer within {HANDSHAKE_TIMEOUT_S:g} s"
        if isinstance(error, finsy.P4ClientError):
            if error.code is finsy.GRPCStatusCode.UNIMPLEMENTED:
                return _NO_P4RUNTIME
            # A stream that the server ends before anything was sent says no more than this.
            if error.code is finsy.GRPCStatusCode.INTERNAL and credentials is None and await self._lacks_p4runtime():
                return _NO_P4RUNTIME
        said = _one_line(error)
        return await asyncio.to_thread(what_answers, self.address) if "failed to connect" in said else said

    async def _lacks_p4runtime(self) -> bool:
        """Whether a gRPC server without TLS says that it has no P4Runtime."""
        async with grpc.aio.insecure_channel(self.address) as channel:
            ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                "/p4.v1.P4Runtime/Capabilities", bytes, bytes
            )
            try:
                await ask(b"", timeout=HANDSHAKE_TIMEOUT_S)
            except grpc.aio.AioRpcError as refusal:
                return refusal.code() is grpc.StatusCode.UNIMPLEMENTED
        return False

    @asynccontextmanager
    async def _calling(self) -> AsyncIterator[finsy.Switch]:
        """The switch; failures of a call as a whole become SwitchUnavailableError."""
        switch = self._switch
        if switch is None:
            raise SwitchUnavailableError(f"no session with switch {self.address}")
        try:
            async with asyncio.timeout(self._options.answer_s):
                yield switch
        except TimeoutError as error:
            reason = f"it did not answer within {self._options.answer_s:g} s"
            self._give_up(reason)
            raise SwitchUnavailableError(f"switch {self.address}: {reason}") from error
        except (finsy.P4ClientError, AssertionError, asyncio.InvalidStateError, grpc.RpcError) as error:
            # finsy asserts that its channel is open: it closed under us.
            raise SwitchUnavailableError(f"switch {self.address}: {_one_line(error)}") from error

    async def _write_batch(self, updates: Sequence[tuple[int, Update]]) -> dict[int, str]:
        async with self._calling() as switch:
            entities: list[Any] = []
            indexes: list[int] = []
            """Which update each entity is of."""
            refused: dict[int, str] = {}
            for index, update in updates:
                try:
                    encoded = encode_updates(self._codec.encode(update, switch.p4info), switch.p4info)
                except (ValueError, OverflowError) as error:
                    refused[index] = f"no such entry is possible in this program: {_one_line(error)}"
                    continue
                entities += encoded
                indexes += [index] * len(encoded)
            try:
                await switch.write(entities)
            except finsy.P4ClientError as error:
                if not error.details:
                    raise
                for at, one in error.details.items():
                    refused[indexes[at]] = f"{one.canonical_code.name}: {one.message}"
            return refused


class _Role(enum.Enum):
    NONE = "none"
    PRIMARY = "primary"
    STANDBY = "standby"


async def read_contents(switch: finsy.Switch, codec: V1ModelCodec) -> SwitchContents:
    """Everything that the control plane owns in a switch, primary or not. Raises finsy.P4ClientError."""
    found = await _read(switch, codec.queries(switch.p4info))
    for report in codec.reports:
        found += await _read_subscription(switch, DIGESTS[report])
    return contents(*codec.decode(found))


async def _forward_reports(switch: finsy.Switch, codec: V1ModelCodec, sink: Callable[[SwitchEvent], None]) -> None:
    async def forward(kind: Report) -> None:
        async for reports in switch.read_digests(DIGESTS[kind], queue_size=DIGEST_LISTS_QUEUED_MAX):
            for report in reports:
                sink(READERS[kind](report))
            await switch.write([reports.ack()])

    async with asyncio.TaskGroup() as group:
        for kind in codec.reports:
            group.create_task(forward(kind))


def _raise_defects(failure: BaseException) -> None:
    """What ended the reports, unless the connection did."""
    if not isinstance(failure, ExceptionGroup):
        raise failure
    of_connection = (finsy.P4ClientError, AssertionError, asyncio.InvalidStateError, grpc.RpcError)
    defects = failure.split(of_connection)[1]
    if defects is not None:
        raise defects


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


def _one_line(error: BaseException) -> str:
    text = error.message if isinstance(error, finsy.P4ClientError) else str(error)
    return " ".join((text or type(error).__name__).split())
