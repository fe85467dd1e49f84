"""Everything at once, at random: whatever happens, the checkers hold, and a prefix that somebody still holds arrives.

A seed decides all of it: nodes, racks, sizes, arrivals, what the links do, who dies, what is evicted, when switches
restart. `KVCAST_MIX_SEEDS=4000-4999 pytest tests/sim/test_random_mix.py` looks at other seeds than the usual ones.
"""

import os
from dataclasses import replace

import pytest

from hostagent.core.events import SwitchStateGiven
from kvclient.messages import Status
from kvproto.fanout import Fanout
from kvproto.limits import MEMBERS_MAX, MS
from kvsim.chance import Chance
from kvsim.disk import DiskFaults
from kvsim.link import Faults
from kvsim.world import Setting, World
from tests.sim.checks import violations

SEEDS_VARIABLE = "KVCAST_MIX_SEEDS"
SEEDS_USUAL = "0-39"
SEEDS_FOUND = (91547, 303928)
"""That found a defect once: a chunk on disks, and a wrong copy of it in memory; probes whose holders all died."""
DEADLINE_NS = 20_000 * MS
TTL_NS = 500 * MS


def seeds() -> list[int]:
    asked = os.environ.get(SEEDS_VARIABLE)
    first, _, last = (asked or SEEDS_USUAL).partition("-")
    return [*range(int(first), int(last or first) + 1), *(() if asked else SEEDS_FOUND)]


def between(chance: Chance, least: int, most: int) -> int:
    return least + chance.below(most - least + 1)


def random_setting(chance: Chance, seed: int) -> Setting:
    """Mostly small, now and then hundreds of nodes; about as many segments in all, whatever the shape."""
    racks = between(chance, 1, 4)
    readers = between(chance, 1, 12) if chance.below(8) else between(chance, 100, 60 * racks + 40)
    racks = max(racks, -(-readers // 60))
    chunks = between(chance, 1, 4 if readers > 50 else 6)
    budget = 6_000 // (readers * chunks)
    ill = bool(chance.below(3))
    setting = Setting(
        readers=readers,
        holders=between(chance, 1, 3),
        racks=racks,
        chunks=chunks,
        segments=max(1, min(budget, between(chance, 1, 200))),
        stagger_ns=chance.below(3) * between(chance, 1, 60) * MS,
        slow={chance.below(readers): 3_000_000.0} if not chance.below(4) else {},
        cached=not chance.below(4),
        plain=not chance.below(12),
        faults=Faults(
            loss=ill * chance.fraction() * 0.05,
            duplication=ill * chance.fraction() * 0.05,
            reordering=ill * chance.fraction() * 0.05,
            corruption=ill * chance.fraction() * 0.02,
        ),
        ttl_ns=TTL_NS,
        interest_entries=1 if not chance.below(8) else 65536,
        deadline_ns=DEADLINE_NS,
        proves=seed % 2 == 0,
        know_link=seed % 3 == 0,
        seed=seed,
    )
    return without_a_switch(setting, seed)


def without_a_switch(setting: Setting, seed: int) -> Setting:
    """Of ten seeds one has relays, one multicast in one rack, and one nothing at all."""
    plain = replace(setting, cached=False, plain=True)
    if seed % 10 == 4:
        return replace(plain, is_known_plain=True)
    if seed % 10 == 9:
        return replace(plain, is_known_plain=True, fanout=Fanout.RELAY, relay_share=(1.0, 0.5, 0.0)[seed // 10 % 3])
    if seed % 10 == 7:
        weight = (0.0, 0.1, 100.0)[seed // 10 % 3]
        readers = min(setting.readers, MEMBERS_MAX - setting.holders)
        slow = {reader: rate for reader, rate in setting.slow.items() if reader < readers}
        return replace(plain, fanout=Fanout.MULTICAST, racks=1, readers=readers, slow=slow, unasked_weight=weight)
    return setting


def equipped(setting: Setting, chance: Chance) -> Setting:
    """The same with pools, disks and gates that may be tight, bad and strict."""
    tiers = bool(chance.below(2))
    bad_disks = not chance.below(4)
    on_disk = tuple(index for index in range(setting.chunks) if tiers and not setting.cached and not chance.below(3))
    return replace(
        setting,
        recompute_s=0.001 * between(chance, 1, 2_000) if not chance.below(4) else None,
        pool_chunks=between(chance, setting.chunks, 2 * setting.chunks),
        disk_chunks=between(chance, setting.chunks, 3 * setting.chunks) if tiers else 0,
        disk_faults=DiskFaults(*(bad_disks * chance.fraction() * 0.2 for _ in range(3))),
        announced=bool(chance.below(2)),
        on_disk=on_disk,
    )


class Mix:
    """A world and what happens in it; `story` tells it to whoever has to find out why it failed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._chance = Chance(seed).fork("mix")
        agents = self._agents = self._chance.fork("agents")
        """Of its own stream: what it draws changes nothing of what the network does."""
        self.world = World(equipped(random_setting(self._chance, seed), agents))
        self.story: list[str] = []
        self._survivor = self.world.holders[self._chance.below(len(self.world.holders))]
        """Never dies, never evicts, is never wrong."""
        self.doomed = not self._chance.below(8)
        """The survivor, too, dies; then a miss is an answer."""
        for _ in range(between(self._chance, 0, 4)):
            self._happening()
        for _ in range(between(agents, 0, 3)):
            self._happening_to_an_agent()
        if self.doomed:
            for holder in self.world.holders:
                self._at(self._moment(), f"{holder.name} dies", holder.kill)

    def _moment(self) -> int:
        return self._chance.below(self.world.setting.stagger_ns + 150 * MS)

    def _at(self, at_ns: int, what: str, action) -> None:
        self.story.append(f"{at_ns / MS:.1f} ms: {what}")
        self.world.engine.at(at_ns, action)

    def _happening(self) -> None:
        world, chance, at_ns = self.world, self._chance, self._moment()
        others = [holder for holder in world.holders if holder is not self._survivor]
        match chance.below(6):
            case 0 | 1:
                victim = world.readers[chance.below(len(world.readers))]
                self._at(at_ns, f"{victim.name} dies", victim.kill)
            case 2:
                rack = chance.below(len(world.switches))
                told = bool(chance.below(2))
                self._at(
                    at_ns, f"switch {rack} restarts, {'' if told else 'not '}told", lambda: self._restart(rack, told)
                )
            case 3 if others:
                victim = others[chance.below(len(others))]
                self._at(at_ns, f"{victim.name} dies", victim.kill)
            case 4 if others:
                holder, key = others[chance.below(len(others))], world.keys[chance.below(len(world.keys))]
                self._at(at_ns, f"{holder.name} evicts {key.hex()}", lambda: holder.evict(key))
            case 5 if others and not world.setting.cached:
                holder, key = others[chance.below(len(others))], world.keys[chance.below(len(world.keys))]
                holder.hold(key, world.setting.segments, wrong=True)
                self.story.append(f"{holder.name} has wrong bytes for {key.hex()}")

    def _happening_to_an_agent(self) -> None:
        world, chance = self.world, self._agents
        at_ns = chance.below(world.setting.stagger_ns + 150 * MS)
        others = [node for node in world.nodes if node is not self._survivor]
        match chance.below(4):
            case 0 | 1:
                node = others[chance.below(len(others))]
                self._at(at_ns, f"{node.name} restarts", lambda: None if node.dead else world.restart(node))
            case 2:
                node = world.readers[chance.below(len(world.readers))]
                self._at(at_ns, f"{node.name}'s engine gives up", node.cancel)
            case 3 if not world.setting.cached and not world.setting.plain:
                index = chance.below(len(world.keys))
                self._at(at_ns, f"chunk {index} is filled into the switch", lambda: world.fill(index, timeout_s=0.3))
                self._at(at_ns + 300 * MS, f"chunk {index} is served", lambda: world.serve(index))

    def _restart(self, rack: int, told: bool) -> None:
        epoch = self.world.engine.now_ns
        self.world.switches[rack].reboot()
        if told:
            for node in self.world.readers:
                if self.world.core.racks[node.address] == rack:
                    node.tell(SwitchStateGiven(epoch))

    @property
    def _may_end(self) -> set[Status]:
        """How fetches may end here."""
        setting = self.world.setting
        may = {Status.OK, Status.CANCELLED}
        if setting.recompute_s is not None:
            # Refused, or given up once computing would have been done.
            may |= {Status.GATE, Status.DEADLINE}
        if self.doomed or (setting.on_disk and setting.disk_faults != DiskFaults()):
            may |= {Status.UNAVAILABLE, Status.DEADLINE, Status.NOT_FOUND}
        return may

    def problems(self) -> list[str]:
        """Run it; what is not as it must be."""
        self.world.run()
        found = violations(self.world)
        for node in self.world.readers:
            answer = node.answer
            if not node.dead and answer is not None and answer.outcome not in self._may_end:
                found.append(f"{node.name}: {answer.outcome.name}, though {self._survivor.name} has everything")
        return found


@pytest.mark.parametrize("seed", seeds())
def test_random_mix(seed: int) -> None:
    mix = Mix(seed)
    found = mix.problems()
    if found:
        lines = [f"{SEEDS_VARIABLE}={seed} pytest tests/sim/test_random_mix.py", repr(mix.world.setting)]
        lines += [*mix.story, "->", *found[:20]]
        pytest.fail("\n  ".join(lines), pytrace=False)
