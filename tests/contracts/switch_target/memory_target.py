"""A SwitchTarget in memory: what the contract says and nothing else. Restarts, refuses and reports when told to.

With a recirculation port it is one that runs the program for Tofino: other entries, and segments that can be lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from controlplane.core.ids import ChunkKey, SwitchPort
from controlplane.core.locations import Location
from controlplane.core.switch.entries import SwitchContents
from controlplane.core.switch.programmer import apply
from controlplane.core.switch.target import (
    Down,
    HeatReport,
    LostReport,
    Operation,
    OrbitTraffic,
    Sighting,
    Standby,
    SwitchCounters,
    SwitchEvent,
    SwitchFacts,
    SwitchUnavailableError,
    Up,
    Update,
)


class MemorySwitch:
    """The switch itself: tables, and the controllers connected to it by election id."""

    def __init__(
        self, slots: int = 64, segment_bytes: int = 4096, recirculation_port: SwitchPort | None = None
    ) -> None:
        self.facts = SwitchFacts(slots, segment_bytes, recirculation_port)
        self.contents: SwitchContents = {}
        self.refuse: Callable[[Update], str | None] = lambda _: None
        self.writes = 0
        self._sessions: dict[int, MemoryTarget] = {}

    @property
    def primary(self) -> MemoryTarget | None:
        return self._sessions[max(self._sessions)] if self._sessions else None

    def connect(self, target: MemoryTarget) -> None:
        before = self.primary
        self._sessions[target.election_id] = target
        if self.primary is not before and before is not None:
            before.tell(Down("another controller became primary"))
            before.tell(Standby())
        target.tell(Up(self.facts) if self.primary is target else Standby())

    def disconnect(self, target: MemoryTarget) -> None:
        was_primary = self.primary is target
        self._sessions.pop(target.election_id, None)
        if was_primary:
            target.tell(Down("connection lost"))
            if self.primary is not None:
                self.primary.tell(Up(self.facts))

    def reload(self) -> None:
        """A fresh program: tables empty, sessions stay."""
        self.contents.clear()

    def report(self, key: ChunkKey, members: int) -> None:
        if self.primary is not None:
            self.primary.tell(HeatReport(key, members, 0))

    def here(self, key: bytes, seen: Location) -> None:
        """A node says where it is."""
        if ("source", (seen.port, seen.mac, seen.ip)) not in self.contents and self.primary is not None:
            self.primary.tell(Sighting(key, seen))

    def lose(self, key: ChunkKey, segment: int) -> None:
        """A segment was lost on its round, and somebody asks for it."""
        if self.primary is not None:
            self.primary.tell(LostReport(key, segment))


class MemoryTarget:
    """One controller's access to a MemorySwitch."""

    def __init__(self, switch: MemorySwitch, election_id: int = 10) -> None:
        self.switch = switch
        self.election_id = election_id
        self._sink: Callable[[SwitchEvent], None] | None = None
        self._restart = asyncio.Event()

    @property
    def address(self) -> str:
        return "memory"

    def tell(self, event: SwitchEvent) -> None:
        if self._sink is not None:
            self._sink(event)

    def drop_session(self) -> None:
        """The stream breaks; the target connects again by itself."""
        self._restart.set()

    async def run(self, sink: Callable[[SwitchEvent], None], election_id: int | None = None) -> None:
        self._sink = sink
        self.election_id = election_id or self.election_id
        try:
            while True:
                self._restart.clear()
                self.switch.connect(self)
                await self._restart.wait()
                self.switch.disconnect(self)
        finally:
            self.switch.disconnect(self)
            self._sink = None

    async def read(self) -> SwitchContents:
        await self._round_trip()
        return dict(self.switch.contents)

    async def write(self, updates: Sequence[Update]) -> dict[int, str]:
        await self._round_trip()
        self.switch.writes += 1
        refused: dict[int, str] = {}
        for index, update in enumerate(updates):
            reason = self.switch.refuse(update) or self._clash(update)
            if reason is None:
                apply(self.switch.contents, update)
            else:
                refused[index] = reason
        return refused

    async def counters(self) -> SwitchCounters:
        await self._round_trip()
        orbit = None if self.switch.facts.recirculation_port is None else OrbitTraffic({}, 0, 0)
        return SwitchCounters({}, orbit)

    async def _round_trip(self) -> None:
        await asyncio.sleep(0)
        if self._sink is None or self.switch.primary is not self:
            raise SwitchUnavailableError("no session with the switch")

    def _clash(self, update: Update) -> str | None:
        if update.entry.identity in (("fabric", None), ("replicate_default", None)):
            return None
        present = update.entry.identity in self.switch.contents
        if update.operation is Operation.INSERT:
            return "ALREADY_EXISTS" if present else None
        return None if present else "NOT_FOUND"
