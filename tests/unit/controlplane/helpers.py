"""Short ways to say things in the tests of the control plane."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from controlplane.config import parse
from controlplane.core.core import Core
from controlplane.core.directory import ChunkFacts
from controlplane.core.effects import (
    Answer,
    CloseSession,
    Effect,
    Inform,
    JobProgress,
    ReadTheSwitch,
    RequestRefused,
    SendTo,
    Warn,
    WriteTheSwitch,
)
from controlplane.core.events import (
    Event,
    HelloReceived,
    MessageReceived,
    OperatorEvent,
    StreamEnded,
    SwitchRead,
    SwitchWritten,
    TimerFired,
)
from controlplane.core.ids import ChunkKey, SwitchPort
from controlplane.core.live.live import Live
from controlplane.core.locations import Location
from controlplane.core.nodes import Graces, NodeFacts
from controlplane.core.operations import OperatorError
from controlplane.core.options import CoreOptions, FabricParameters, SwitchCacheRules
from controlplane.core.switch.entries import ServingEntry, SwitchContents
from controlplane.core.switch.programmer import apply
from controlplane.core.switch.target import HeatReport, Operation, Sighting, SwitchFacts, Up
from kvproto.chunk_columns import PINNED, SERVED, unpack
from kvproto.integrity import Integrity, code_of
from kvproto.rpc import control_pb2 as rpc
from tests.digests import digest

SECOND = 1_000_000_000
MILLISECOND = 1_000_000
CHUNK = 8 * 4096
"""Bytes of a chunk of eight segments."""

FABRIC = parse({}, Path(".")).core.fabric


def key(name: object) -> ChunkKey:
    return ChunkKey(hashlib.blake2b(str(name).encode(), digest_size=16).digest())


def facts(name: object, parent: object | None = None, position: int = 0, size: int = CHUNK) -> ChunkFacts:
    return ChunkFacts(
        key(name), None if parent is None else key(parent), size, digest(sum(str(name).encode())), position, "m"
    )


def record(name: object, parent: object | None = None, position: int = 0, size: int = CHUNK) -> rpc.ChunkRecord:
    return rpc.ChunkRecord(
        key=key(name),
        parent=b"" if parent is None else key(parent),
        size_bytes=size,
        digest=digest(sum(str(name).encode())),
        position=position,
    )


def hello(number: int, **changes: object) -> rpc.Hello:
    message = rpc.Hello(
        integrities=[rpc.INTEGRITY_XXH3, rpc.INTEGRITY_BLAKE3],
        node=f"n{number}",
        incarnation=1,
        data_ip=bytes([10, 75, 0, number]),
        data_mac=bytes([2, 0x4B, 0x56, 0, 0, number]),
        read_endpoint=f"10.75.0.{number}:4790",
        control_port=4793,
        switch_port=number,
        pool_bytes=1 << 30,
        segment_bytes=[256, 4096],
        transports=[rpc.TRANSPORT_SOCKETS],
    )
    for name, value in changes.items():
        if isinstance(value, rpc.OperatorState | rpc.Interests):
            getattr(message, name).CopyFrom(value)
        elif isinstance(value, list):
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    return message


class SwitchModel:
    """A switch's tables, for tests that carry out the core's wishes by hand."""

    def __init__(self, slots: int = 64, segment_bytes: int = 4096) -> None:
        self.facts = SwitchFacts(slots, segment_bytes)
        self.contents: SwitchContents = {}
        self.refuse: set[tuple[Operation, str]] = set()
        """(operation, kind of entry) that it will not take."""

    def write(self, write: WriteTheSwitch) -> dict[int, str]:
        refused: dict[int, str] = {}
        for index, update in enumerate(write.updates):
            kind = update.entry.identity[0]
            present = update.entry.identity in self.contents
            if (update.operation, kind) in self.refuse:
                refused[index] = "RESOURCE_EXHAUSTED: no"
            elif kind != "fabric" and present == (update.operation is Operation.INSERT):
                refused[index] = "ALREADY_EXISTS" if present else "NOT_FOUND"
            else:
                apply(self.contents, update)
        return refused

    def kinds(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for kind, _ in self.contents:
            counts[kind] = counts.get(kind, 0) + 1
        return counts


class Scene:
    """A core with agents and a switch that are played by the test."""

    def __init__(self, slots: int = 64, with_switch: bool = True, incarnation: int = 1000, **changes: object) -> None:
        options = {
            "fabric": FabricParameters(FABRIC.entry, FABRIC.qkey),
            "graces": Graces(SECOND, 2 * SECOND, 60 * SECOND),
            "incarnation": incarnation,
            "with_switch": with_switch,
            "rules": SwitchCacheRules(price_fills=False),
            "check_switch_ns": 3600 * SECOND,
            "publish_ns": 0,
            "look_ns": 0,
        } | changes
        self.core = Core(CoreOptions(**options))  # type: ignore[arg-type]
        self.live = Live(self.core)
        self.switch = SwitchModel(slots)
        self.now = SECOND
        self.sent: dict[int, list[rpc.ToAgent]] = {}
        self.closed: dict[int, CloseSession] = {}
        self.progress: list[JobProgress] = []
        self.warned: list[str] = []
        self.informed: list[str] = []
        self.connected = False
        self.cabled: dict[str, SwitchPort] = {}
        """By node name: where the switch sees it; others are where they say."""

    # -- acting

    def attach(self, number: int, chunks: Iterable[rpc.ChunkRecord] = (), **changes: object) -> None:
        """Session and node have the same number here."""
        self.sent[number] = []
        self.closed.pop(number, None)
        self.handle(HelloReceived(number, hello(number, **changes)))
        self.advance()
        self.announce(number, chunks, snapshot=True, snapshot_end=True)

    def announce(self, session: int, chunks: Iterable[rpc.ChunkRecord] = (), **changes: object) -> None:
        self.say(session, announce=rpc.Announce(added=list(chunks), **changes))  # type: ignore[arg-type]

    def here(self) -> None:
        """Every agent says HERE, as it does with each heartbeat: the switch reports whom it does not know there."""
        for node in self.core.nodes:
            facts = node.facts
            port = self.cabled.get(facts.name, facts.switch_port)
            if self.connected and node.attached and node.here_key and port is not None:
                self.see(node.here_key, port, facts)

    def see(self, here_key: bytes, port: SwitchPort, facts: NodeFacts) -> None:
        """The switch sees a HERE with these addresses at this port."""
        if ("source", (port, facts.data_mac, facts.data_ip)) not in self.switch.contents:
            place = Location(port, facts.data_mac, facts.data_ip)
            self.handle(Sighting(here_key, place))
            self.advance(heard=False)

    def say(self, session: int, **message: object) -> None:
        self.handle(MessageReceived(session, rpc.FromAgent(**message)))  # type: ignore[arg-type]
        self.advance()

    def ask(self, request: OperatorEvent) -> Any:
        """What an operator gets. Raises OperatorError."""
        for effect in self.handle(request):
            match effect:
                case Answer(reply=reply):
                    return reply
                case RequestRefused(code=code, reason=reason):
                    raise OperatorError(code, reason)
        return None

    def up(self) -> None:
        self.connected = True
        self.handle(Up(self.switch.facts))
        self.advance()

    def handle(self, event: Event) -> list[Effect]:
        """Something happens, now; returns the effects, carried out."""
        effects = self.core.handle(event, self.now)
        self.carry_out(effects)
        return effects

    def carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self._carry_out(effect)

    def advance(self, *, heard: bool = True) -> None:
        """Carry out effects until there are none, and let the switch see who is there."""
        self._carry_out_all()
        if heard:
            self.here()

    def _carry_out_all(self) -> None:
        for _ in range(1000):
            if not self.handle(TimerFired()):
                return
        raise AssertionError("the core never comes to rest")

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case SendTo(session=session, message=message):
                self.sent.setdefault(session, []).append(message)
            case Inform(text=text):
                self.informed.append(text)
            case Warn(text=text):
                self.warned.append(text)
            case CloseSession(session=session):
                self.closed[session] = effect
                self.handle(StreamEnded(session))
            case ReadTheSwitch():
                self.handle(SwitchRead(dict(self.switch.contents) if self.connected else None))
            case WriteTheSwitch():
                self.handle(SwitchWritten(self.switch.write(effect) if self.connected else None))
            case JobProgress():
                self.progress.append(effect)

    def wait(self, seconds: float) -> None:
        """Time passes; attached agents go on sending heartbeats."""
        end = self.now + int(seconds * SECOND)
        while self.now < end:
            self.now = min(end, self.now + SECOND // 2)
            for node in self.core.nodes:
                if node.attached:
                    self.handle(MessageReceived(node.session, rpc.FromAgent(heartbeat=rpc.Heartbeat())))
            self.advance()

    # -- seeing

    def refusals(self, session: int) -> list[rpc.Refusal]:
        """What an agent was told that the controller has not taken."""
        return [one for message in self.sent[session] for one in message.refusals.refused]

    def tasks(self, session: int, kind: str | None = None) -> list[rpc.Task]:
        tasks = [message.task for message in self.sent[session] if message.WhichOneof("message") == "task"]
        return [task for task in tasks if kind is None or task.WhichOneof("work") == kind]

    def finish(
        self, session: int, task: rpc.Task, status: rpc.TaskResult.Status.ValueType = rpc.TaskResult.DONE
    ) -> None:
        self.say(session, task_result=rpc.TaskResult(task=task.task, status=status, done=1))

    def replica(self, session: int) -> dict[bytes, rpc.ChunkEntry]:
        """The directory as this agent knows it; checks the sequence on the way."""
        known: dict[bytes, rpc.ChunkEntry] = {}
        coming: dict[bytes, rpc.ChunkEntry] = {}
        sequence = None
        for message in self.sent[session]:
            if message.WhichOneof("message") != "directory":
                continue
            delta = message.directory
            if delta.snapshot:
                coming |= {entry.key: entry for entry in _entries(delta)}
                for gone in delta.chunks_gone:
                    coming.pop(gone, None)
                if delta.snapshot_end:
                    known, coming = coming, {}
                    sequence = delta.sequence
                continue
            before = delta.after if delta.HasField("after") else delta.sequence - 1
            assert sequence in (None, before), "a gap in the sequence"
            sequence = delta.sequence
            known |= {entry.key: entry for entry in _entries(delta)}
            for gone in delta.chunks_gone:
                known.pop(gone, None)
        return known

    def served(self) -> set[bytes]:
        """Keys that the switch itself says it serves."""
        return {entry.key for entry in self.switch.contents.values() if isinstance(entry, ServingEntry)}

    def heat(self, name: object, members: int = 0b110) -> None:
        self.handle(HeatReport(key(name), members, 0))
        self.advance()

    def fill(self, name: object, members: int = 0b110) -> None:
        """Have a chunk admitted and filled."""
        self.heat(name, members)
        for session in list(self.sent):
            for task in self.tasks(session, "fill"):
                if task.fill.key == key(name):
                    self.finish(session, task)


def ports(*numbers: int) -> tuple[SwitchPort, ...]:
    return tuple(SwitchPort(number) for number in numbers)


def _entries(delta: rpc.DirectoryDelta) -> list[rpc.ChunkEntry]:
    """The chunks of a change, those in columns among them."""
    first = next(iter(delta.columns.digests), 2)
    integrity = Integrity.XXH3 if first == code_of(Integrity.XXH3) else Integrity.BLAKE3
    names = {name: number for number, name in enumerate(delta.namespaces)}
    return [
        *delta.chunks,
        *(
            rpc.ChunkEntry(
                key=one.key,
                parent=one.parent or b"",
                size_bytes=one.size_bytes,
                position=one.position,
                holders=one.holders,
                served=bool(one.flags & SERVED),
                pinned=bool(one.flags & PINNED),
                value=one.value,
                disk_holders=one.disk_holders,
                digest=one.digest,
                namespace_index=names.get(one.namespace, 0),
            )
            for one in unpack(delta.columns, delta.namespaces, integrity, _raise)
        ),
    ]


def _raise(key: bytes, why: str) -> None:
    raise AssertionError(why)
