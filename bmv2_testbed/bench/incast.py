"""The incast: N readers fetch the same prefix from one holder, at once or staggered, by kvcast and by its peers."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from bmv2_testbed import client
from bmv2_testbed.bench.figures import IncastFigures, incast_figures, mean_of
from bmv2_testbed.bench.group import ReaderGroup, agent_socket, await_prefix, await_way, put_prefix
from bmv2_testbed.bench.peer_servers import Peer, peer_running
from bmv2_testbed.bench.relay import chain
from bmv2_testbed.client import Testbed
from bmv2_testbed.content import Prefix
from bmv2_testbed.network.counters import InterfaceCounters
from bmv2_testbed.scale import CORE_BIT_S, FULL
from bmv2_testbed.spec import NO_FAULTS, Bridge, Faults, Target, TestbedSpec, data_ip, host_name, rack_name
from kvpolicy.tiers.form_costs import FormChoice

_POOL_BYTES_MIN: Final = 64 * 2**20
_SLOTS_MIN: Final = 1024
"""Looks at the interfaces while the prefix goes over one link."""

UNSHAPED_BIT_S: Final = 8_000_000_000
"""1 GB/s: times over S at that are milliseconds for each MB."""
_TURN_S: Final = 0.5
"""Between readers that fetch alone."""
_ROUNDS: Final = 2
"""Prefixes that all fetch together before the one that counts."""

_TICK_S: Final = 0.2
_CUT_TICK_S: Final = 0.02

Say = Callable[[str], None]


class Mode(StrEnum):
    """How kvcast brings the prefix to its readers."""

    UNICAST = "unicast"
    """The pool on a plain bridge: what a pool without the switch can do."""
    CAST = "cast"
    """Replicated by the switch while it is in flight."""
    CACHE = "cache"
    """Served by the switch itself."""
    MULTICAST = "multicast"
    """Replicated by a plain bridge that snoops, to groups of the pool's members."""
    RELAY = "relay"
    """Passed on by readers while it arrives, over a plain bridge that drops multicast."""

    AUTO = "auto"
    """As the controller finds it for a plain bridge that snoops."""

    @property
    def is_plain(self) -> bool:
        """Over a bridge, without a switch's program."""
        return self in _BRIDGES

    @property
    def fanout(self) -> str:
        """`fabric.fanout` of its controller."""
        return self.value if self in _WAYS else "switch"


_WAYS: Final = (Mode.MULTICAST, Mode.RELAY, Mode.AUTO)
_BRIDGES: Final = {
    Mode.UNICAST: Bridge.FLOODS,
    Mode.MULTICAST: Bridge.SNOOPS,
    Mode.RELAY: Bridge.DROPS,
    Mode.AUTO: Bridge.SNOOPS,
}
"""Modes without a switch, and what the bridge in its place does with multicast."""


class Trust(StrEnum):
    """What stands between nodes that do not trust each other. Tokens are there either way: a connection shows one."""

    ON = "on"
    """BLAKE3, certificates on the control channel, meters in the switch."""
    OFF = "off"
    """xxh3, `insecure: true`, no meters."""


SET_READERS: Final = 3
"""In a random set."""


@dataclass(frozen=True, slots=True)
class DrawnSet:
    """Hosts that fetch a prefix of their own."""

    prefix: Prefix
    hosts: Sequence[int]


@dataclass(frozen=True, slots=True)
class IncastPlan:
    """One incast benchmark; sizes in bytes, rates in bit/s, reader indices from 0."""

    readers: int = 8
    rate_bit_s: int | None = FULL.link_bit_s
    """None: links are not shaped, and times are over S at UNSHAPED_BIT_S."""
    size_bytes: int = FULL.incast_bytes
    chunk_bytes: int = FULL.chunk_bytes
    stagger: bool = False
    seed: int = 1
    slow: Mapping[int, int] = field(default_factory=dict)
    """Rates of the readers whose link differs, by reader index."""
    uplink_bit_s: int | None = None
    """Of all readers; None: as their links."""
    faults: Faults = NO_FAULTS
    target: Target = Target.P4SWITCH
    trust: Trust | None = None
    """None: as the testbed is, which is all of it but the certificates."""
    rails: int = 1
    """Networks, each with links of `rate_bit_s`."""
    cut: bool = False
    """The holder's cable to the last rail is pulled when half of all bytes are there."""
    chooses: bool | None = None
    """Readers have fetched other prefixes before, alone and together, and measured what each way brings. True: they
    choose by that; False: the mode's way it is. None: they have measured nothing."""
    sets: int = 0
    """So often SET_READERS of the readers, drawn at random, fetch a prefix of their own; 0: all fetch one."""
    unasked_weight: float | None = None
    """The controller's `fabric.unasked_weight`; None: its default."""
    racks: int = 1
    """More than one: hosts in so many racks, the holder in the first, by relays or unicast."""
    core_bit_s: int = CORE_BIT_S
    """Rate of each rack's link to the others, each way."""
    form: FormChoice | None = None
    """The agents' `wire.form`, with numbers as KV has them for content; None: the content is random
    bytes, which no form makes smaller."""

    @property
    def prefix(self) -> Prefix:
        kv, twins = self.form is not None, self.form is FormChoice.LOSSLESS
        return Prefix(self.seed, self.size_bytes, self.chunk_bytes, kv, twins)

    @property
    def ideal_s(self) -> float:
        return self.size_bytes * 8 / self.narrowest_bit_s

    @property
    def narrowest_bit_s(self) -> int:
        """B: the rate of hosts' links, or of those between racks where that is less."""
        links = self.rate_bit_s or UNSHAPED_BIT_S
        return min(links, self.core_bit_s) if self.racks > 1 else links

    def offsets_s(self) -> list[float]:
        """Each reader's start after the first one's: zeros, or random within one transfer time."""
        if not self.stagger:
            return [0.0] * self.readers
        rng = random.Random(self.seed)
        return [0.0, *(rng.random() * self.ideal_s for _ in range(self.readers - 1))]

    def drawn_sets(self) -> list[DrawnSet]:
        """Who fetches what, set by set."""
        rng = random.Random(self.seed)
        return [
            DrawnSet(
                replace(self.prefix, seed=self.seed + 1 + index),
                sorted(rng.sample(range(1, self.readers + 1), SET_READERS)),
            )
            for index in range(self.sets)
        ]

    def testbed(self, mode: Mode) -> TestbedSpec:
        """The testbed that a mode runs on: host 0 holds, host i + 1 is reader i."""
        segment_bytes = self.target.segment_bytes
        return TestbedSpec(
            target=Target.BRIDGE if mode.is_plain else self.target,
            bridge=_BRIDGES.get(mode, Bridge.FLOODS),
            rails=self.rails,
            racks=self.racks,
            core_bit_s=self.core_bit_s if self.racks > 1 else None,
            hosts=self.readers + 1,
            rate_bit_s=self.rate_bit_s,
            slow_bit_s={reader + 1: rate for reader, rate in self.slow.items()},
            uplink_bit_s=self.uplink_bit_s,
            faults=self.faults,
            seed=self.seed,
            pool_bytes=max(
                _POOL_BYTES_MIN, (3 + self.sets + (1 + _ROUNDS) * (self.chooses is not None)) * self.size_bytes
            ),
            slots=max(_SLOTS_MIN, 2 * self.size_bytes // segment_bytes),
            plain=mode.is_plain,
            tls=self.trust is Trust.ON,
            controller_settings=self._settings(mode),
            agent_settings=self._agent_settings(),
            segment_bytes=segment_bytes,
        )

    def _agent_settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {} if self.form is None else {"wire": {"form": self.form.value}}
        return settings | ({} if self.chooses is None else {"gate": {"choose_way": self.chooses}})

    def _settings(self, mode: Mode) -> dict[str, Any]:
        """Of the controller."""
        settings: dict[str, Any] = {"policy": {"admission": mode is Mode.CACHE, "price_fills": False}}
        fabric: dict[str, Any] = {"fanout": mode.fanout} if mode.is_plain else {}
        if self.unasked_weight is not None:
            fabric["unasked_weight"] = self.unasked_weight
        if self.trust is Trust.OFF:
            fabric["integrity"] = "xxh3"
            settings |= {"switch": {"meters": False}}
        settings["fabric"] = fabric
        return settings


class IncastRun:
    """Runs the modes and peers of a plan, each mode on a testbed of its own, all with the same links."""

    def __init__(self, plan: IncastPlan, say: Say, moved: Callable[[float], None]) -> None:
        """`say`: what happens now, for the screen. `moved`: share of all bytes that arrived so far, in [0, 1]."""
        self._plan = plan
        self._say = say
        self._moved = moved
        self._to_cut = False

    def mode(self, mode: Mode, peers: Sequence[Peer] = ()) -> tuple[IncastFigures, dict[str, IncastFigures]]:
        """Figures of a mode and, on the same links in the same run, of the peers."""
        plan = self._plan
        self._say(f"{mode}: network of {plan.readers + 1} hosts")
        with client.running(plan.testbed(mode)) as testbed:
            found = {peer.value: self._peer(testbed, peer) for peer in peers}
            self._say(f"{mode}: the holder puts the prefix")
            put_prefix(testbed, plan.prefix)
            way = mode.fanout if mode is not Mode.AUTO else await_way(testbed)
            if plan.prefix.twins:
                self._say(f"{mode}: the holder makes twins")
                await_prefix(testbed, plan.prefix, host=1)
            if mode is Mode.CACHE:
                self._say(f"{mode}: the switch takes the prefix in")
                testbed.serve_from_switch(plan.prefix.chunk_keys()[-1], plan.prefix.chunks)
            if plan.chooses is not None:
                self._measure_ways(testbed, mode)
            if plan.sets:
                figures = mean_of([self._one_set(testbed, mode, readers) for readers in plan.drawn_sets()])
            else:
                figures = self._incast(testbed, mode.value, "pool", lambda host: agent_socket(testbed, host))
        return replace(figures, fanout=way), found

    def _measure_ways(self, testbed: Testbed, mode: Mode) -> None:
        """Each reader fetches a prefix alone, then all fetch others together."""
        plan = self._plan
        hosts = [reader + 1 for reader in range(plan.readers)]
        for turn in range(1 + _ROUNDS):
            prefix = replace(plan.prefix, seed=plan.seed + 1 + turn)
            self._say(f"{mode}: all fetch another prefix" if turn else f"{mode}: each reader fetches alone")
            put_prefix(testbed, prefix)
            with ReaderGroup(testbed, prefix, hosts) as readers:
                readers.start(None if turn else [_TURN_S * reader for reader in range(plan.readers)])
                readers.reports()

    def _one_set(self, testbed: Testbed, mode: Mode, drawn: DrawnSet) -> IncastFigures:
        """Some of the readers fetch a prefix that nobody has had."""
        put_prefix(testbed, drawn.prefix)
        for host in drawn.hosts:
            await_prefix(testbed, drawn.prefix, host)
        return self._incast(testbed, mode.value, "pool", lambda host: agent_socket(testbed, host), drawn)

    def peers(self, peers: Sequence[Peer]) -> dict[str, IncastFigures]:
        """Only the peers, on a plain bridge."""
        plan = self._plan
        with client.running(_without_daemons(plan.testbed(Mode.UNICAST))) as testbed:
            return {peer.value: self._peer(testbed, peer) for peer in peers}

    def _peer(self, testbed: Testbed, peer: Peer) -> IncastFigures:
        self._say(f"peer {peer}: the holder loads the prefix")
        with peer_running(testbed, peer, self._plan.prefix):
            return self._incast(testbed, peer.value, peer.value, self._addresses(peer))

    def _addresses(self, peer: Peer) -> Callable[[int], str]:
        """Where the reader in a host finds a peer."""
        if peer is not Peer.CHAIN:
            return lambda _host: data_ip(0)
        before = chain(self._plan.offsets_s())

        def address(host: int) -> str:
            reader = before[host - 1]
            return f"tcp:{data_ip(0)}" if reader is None else f"relay:{data_ip(reader + 1)}"

        return address

    def _incast(
        self,
        testbed: Testbed,
        mode: str,
        source: str,
        address: Callable[[int], str],
        drawn: DrawnSet | None = None,
    ) -> IncastFigures:
        """`drawn`: who fetches what; None: all, the plan's prefix."""
        plan = self._plan
        everybody = [reader + 1 for reader in range(plan.readers)]
        hosts, prefix = (everybody, plan.prefix) if drawn is None else (drawn.hosts, drawn.prefix)
        offsets = plan.offsets_s()[: len(hosts)]
        self._say(f"{mode}: readers get ready")
        with ReaderGroup(testbed, prefix, hosts, source=source, address=address) as readers:
            cpu_before = testbed.cpu_s()
            before = testbed.counters()
            self._say(f"{mode}: {len(hosts)} readers fetch")
            readers.start(offsets)
            self._to_cut = plan.cut
            tick_s = _CUT_TICK_S if plan.cut else _TICK_S
            reports = readers.reports(lambda: self._show_progress(before, testbed), tick_s)
            after = testbed.counters()
            cpu = {name: used - cpu_before[name] for name, used in testbed.cpu_s().items() if name in cpu_before}
        grown = {host: after[host].since(before[host]) for host in after}
        cpu = {name: used for name, used in cpu.items() if not name.startswith("reader")}
        cpu["readers"] = sum(report.cpu_s for report in reports if report is not None)
        return incast_figures(
            mode=mode,
            target=testbed.status()["spec"]["target"],
            size_bytes=plan.size_bytes,
            rate_bit_s=plan.narrowest_bit_s,
            slow_readers=frozenset(plan.slow),
            offsets_s=offsets,
            reports=reports,
            holder=grown[host_name(0)],
            readers=[grown[host_name(host)] for host in hosts],
            others=[grown[host_name(host)] for host in everybody if host not in hosts],
            cores=[grown[rack_name(rack)] for rack in range(plan.racks)] if plan.racks > 1 else [],
            cpu_s=cpu,
            counters="interfaces",
        )

    def _show_progress(self, before: Mapping[str, InterfaceCounters], testbed: Testbed) -> None:
        readers = [host_name(reader + 1) for reader in range(self._plan.readers)]
        now = testbed.counters()
        arrived = sum(now[host].since(before[host]).rx_bytes for host in readers)
        share = arrived / (self._plan.readers * self._plan.size_bytes)
        if self._to_cut and share >= 1 / 2:
            self._to_cut = False
            testbed.set_rail(0, self._plan.rails - 1, False)
        self._moved(min(1.0, share))


def _without_daemons(spec: TestbedSpec) -> TestbedSpec:
    return replace(spec, daemons=False)
