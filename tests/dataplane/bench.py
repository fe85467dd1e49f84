"""The bench of the data-plane suite: frames in, frames out at every port, and the control plane's moves.

`exchange` is exact: it returns everything that the switch sent because of the frames put in, and
nothing else. It knows when to stop looking by fences, flooded frames of an experimental ethertype:
queues of a switch are first in, first out, so what a fence overtakes never comes. Where cached segments
circulate, one of them is a fence too: between two times that it comes by, everything else comes by.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any

import finsy as fy

from p4switch_tna.checksums import crc16_arc, internet_checksum
from tests.dataplane.eyes import look
from tests.dataplane.frames import (
    FENCE_ETHERTYPE,
    FROM_SWITCH_DSCP,
    GROUP_IP,
    GROUP_MAC,
    POOL_IP,
    POOL_MAC,
    Control,
    Datagram,
    Drop,
    Flag,
    Host,
    Op,
    Segment,
    control_frame,
    ethernet,
    parse,
    signature,
)
from tests.dataplane.targets import HEAT_CELLS, INTEREST, Target

MEMBER_PORTS = range(1, 9)
STRANGER_PORT = 9  # a host without an agent
ALL_PORTS = (*MEMBER_PORTS, STRANGER_PORT)
ORBIT_FENCE_PORT = MEMBER_PORTS[-1]
ORBIT_FENCE_SLOT = 255
TICK_NS = 1 << 16
TTL_US = 60_000_000
EXPIRES_US = 1000
WINDOW_US = 60_000_000
HEAT_GETS = 4
LIMIT_S = 10.0

Received = Mapping[int, list[bytes]]


UNSALTED = bytes(32)


def salted_index(key: bytes, salt: bytes, *, circulates: bool) -> int:
    """The entry of a key in the interest table."""
    words = [int.from_bytes(salt[at : at + 4], "big") for at in range(0, 32, 4)]
    parts = [int.from_bytes(key[at : at + 4], "big") for at in (12, 8, 4, 0)]
    if circulates:
        added = [(part + word) % (1 << 32) for part, word in zip(parts, words[:4], strict=True)]
        return crc16_arc(b"".join(one.to_bytes(4, "big") for one in reversed(added))) % INTEREST
    if salt == UNSALTED:
        return (int.from_bytes(key[:2], "big") ^ int.from_bytes(key[8:10], "big")) % INTEREST
    a, b, c, d = (words[at] << 32 | words[at + 1] for at in range(0, 8, 2))
    low, second, third, high = parts
    product = (a + second) * (b + low) + (c + high) * (d + third)
    return (product % (1 << 64) >> 48) % INTEREST


def number(octets: bytes) -> int:
    """An address, as P4Runtime wants it."""
    return int.from_bytes(octets, "big")


def mask(*ports: int) -> int:
    """The interest set of the members on these ports."""
    return sum(1 << (port - 1) for port in ports)


def bitmap_groups() -> list[fy.P4MulticastGroupEntry]:
    """The group of each set of the members."""
    sets = {members: [port for port in MEMBER_PORTS if members & mask(port)] for members in range(1, 1 << 8)}
    return [fy.P4MulticastGroupEntry(one, replicas=tuple((port, 1) for port in ports)) for one, ports in sets.items()]


class Bench:
    """One target with fresh tables, and short words for what the tests do to it."""

    def __init__(self, target: Target, name: str) -> None:
        self.target = target
        self._name = name
        self._fence = count(1)
        self._keys = count(1)
        self._entries: list[fy.P4TableEntry] = []
        self._groups: list[fy.P4MulticastGroupEntry] = []
        self._orbit_fence: bytes | None = None
        """Key of the chunk whose segment is the fence of the orbit."""
        self._orbit_fences = 0
        self._waiting: set[tuple[int, bytes]] = set()
        """Who has joined what."""
        self._salt = UNSALTED
        self._expires = False
        """Interest ends at once, and with it the orbit's fence, which is a GET."""
        self.segment_bytes = target.segment_bytes

    # -- control plane ---------------------------------------------------------------------------

    def insert(self, *entries: fy.P4TableEntry) -> None:
        self.target.control.insert(entries)
        self._entries += entries

    def remove(self, *entries: fy.P4TableEntry) -> None:
        self.target.control.delete(entries)
        for entry in entries:
            self._entries.remove(entry)

    def group(self, group: int, ports: Iterable[int]) -> None:
        entry = fy.P4MulticastGroupEntry(group, replicas=tuple((port, 1) for port in ports))
        self.target.control.insert([entry])
        self._groups.append(entry)

    def fabric(self, *, ttl_us: int = TTL_US, window_us: int = WINDOW_US, heat_gets: int = HEAT_GETS) -> None:
        """Makes the switch a kvcast switch, or changes its parameters."""
        action = fy.P4TableAction(
            "set_fabric",
            group_mac=int.from_bytes(GROUP_MAC, "big"),
            group_ip=int.from_bytes(GROUP_IP, "big"),
            pool_mac=int.from_bytes(POOL_MAC, "big"),
            pool_ip=int.from_bytes(POOL_IP, "big"),
            from_switch_dscp=FROM_SWITCH_DSCP,
            interest_ttl_us=ttl_us,
            heat_window_us=window_us,
            heat_gets=heat_gets,
        )
        self.target.control.modify([fy.P4TableEntry("fabric", action=action, is_default_action=True)])
        self._expires = ttl_us < EXPIRES_US
        if self.target.profile.circulates:
            ticks = {"interest_ttl": ttl_us, "budget_window": ttl_us, "interest_turn": ttl_us // 2}
            ticks |= dict.fromkeys(("row_a.heat_window", "row_b.heat_window", "report_window"), window_us)
            registers = [fy.P4RegisterEntry(name, index=0, data=us * 1000 // TICK_NS) for name, us in ticks.items()]
            self.target.control.modify(registers)

    def old_at_once(self) -> None:
        """On Tofino: an entry may be claimed again as soon as it is there, and lives as long as ever."""
        self.target.control.modify([fy.P4RegisterEntry("interest_turn", index=0, data=0)])

    def fresh_budgets(self) -> None:
        """What members paid for in tests before is forgotten: windows of a microsecond are over."""
        keys = {port: self.any_key() for port in MEMBER_PORTS}
        for ttl_us, op in ((1, Op.JOIN), (TTL_US, Op.LEAVE)):
            self.fabric(ttl_us=ttl_us)
            self.exchange(*((port, control_frame(Host(port), Control(op, key), Host(1))) for port, key in keys.items()))

    def salt(self, salt: bytes) -> None:
        """Changes the salt of the interest table."""
        words = {f"w{at}": int.from_bytes(salt[4 * at : 4 * at + 4], "big") for at in range(8)}
        action = fy.P4TableAction("unsalted") if salt == UNSALTED else fy.P4TableAction("set_salt", **words)
        self.target.control.modify([fy.P4TableEntry("salt", action=action, is_default_action=True)])
        self._salt = salt

    def salt_apart(self, *keys: bytes) -> bytes:
        """A salt with which these keys, and the orbit's fence, have entries of their own that no test has used."""
        apart = [*keys, *([self._orbit_fence] if self._orbit_fence is not None else [])]
        while True:
            salt = hashlib.blake2b(f"{self._name} salt {next(self._keys)}".encode(), digest_size=32).digest()
            circulates = self.target.profile.circulates
            cells = {("interest", salted_index(key, salt, circulates=circulates)) for key in apart}
            if len(cells) == len(apart) and not cells & self.target.used_cells:
                self.target.used_cells |= cells
                return salt

    def interest_index(self, key: bytes) -> int:
        return salted_index(key, self._salt, circulates=self.target.profile.circulates)

    def plain(self) -> None:
        """Makes the switch an ordinary one."""
        action = fy.P4TableAction("plain")
        self.target.control.modify([fy.P4TableEntry("fabric", action=action, is_default_action=True)])

    def attach(self, ports: Iterable[int] = MEMBER_PORTS) -> None:
        """Writes what the controller writes for agents on these ports."""
        for port in ports:
            host = Host(port)
            self.insert(
                table("port_member", {"ingress_port": port}, "set_member", member=host.member, member_bit=host.bit),
                table("egress_member", {"egress_port": port}, "set_receiver", member_bit=host.bit),
            )
            self.know(host)

    def know(self, host: Host, port: int | None = None) -> None:
        """Writes what the controller writes for a node that was seen, at its own port or at another one."""
        port = host.port if port is None else port
        self.insert(
            table("dmac", {"dst": number(host.mac)}, "forward", port=port),
            table("station", {"src": number(host.mac)}, "stands_at", port=port),
            table("source", {"ingress_port": port, "mac": number(host.mac), "ip": number(host.ip)}, "known"),
            table("address", {"ip": number(host.ip)}, "taken"),
        )

    def replicate(self, action: str, **parameters: int) -> None:
        """What happens to sets that the table does not name."""
        entry = fy.P4TableEntry("replicate", action=fy.P4TableAction(action, **parameters), is_default_action=True)
        self.target.control.modify([entry])

    def by_bitmap(self) -> None:
        """Sets are the groups of the same number, where the program has that way."""
        if self.target.profile.circulates:
            self.replicate("to_bitmap")

    def prune(self) -> None:
        """Sets that the table does not name go to all ports, and egress prunes: the only way of a v1model program."""
        if self.target.profile.circulates:
            self.replicate("to_group", group=self.target.profile.flood_group)

    def circulate(self) -> None:
        """Where cached segments circulate, fill in one that is the fence."""
        if self.target.profile.circulates:
            key, host = self.key(), Host(ORBIT_FENCE_PORT)
            (segment,) = self.segments(key, 1, holder=host.port)
            self.insert(self.chunk(key, "filling", base_slot=ORBIT_FENCE_SLOT, segments=1, port=host.port))
            self.exchange((host.port, segment.fill_frame()), expect=1)
            self.serve(key, ORBIT_FENCE_SLOT, 1)
            self.insert(table("replicate", {"members": host.bit}, "to_group", group=host.bit))
            self._orbit_fence = key
            self.exchange()

    def chunk(self, key: bytes, action: str, **parameters: int) -> fy.P4TableEntry:
        return table("kv_cache", {"key": int.from_bytes(key, "big")}, action, **parameters)

    def cache(self, segments: Sequence[Segment], base_slot: int) -> None:
        """Fills a chunk from its holder and makes the switch serve it."""
        key, holder = segments[0].key, segments[0].holder
        entry = self.chunk(key, "filling", base_slot=base_slot, segments=len(segments), port=holder.port)
        self.insert(entry)
        received = self.exchange(*((holder.port, segment.fill_frame()) for segment in segments))
        acks = [parse(frame).control for frame in received[holder.port]]
        assert [ack.segment for ack in acks] == [segment.segment for segment in segments]
        self.serve(key, base_slot, len(segments))

    def serve(self, key: bytes, base_slot: int, segments: int) -> None:
        entry = self.chunk(key, "serving", base_slot=base_slot, segments=segments)
        self.target.control.modify([entry])

    def drops(self, counter: str = "ingress_drops") -> dict[Drop, int]:
        """Packets by reason. Where it is egress that learns how long a packet is, truncated ones count as ingress'."""
        cells = {cell.index: cell for cell in self.target.control.read(fy.P4CounterEntry(counter))}
        found = {reason: cells[reason].data.packet_count for reason in Drop}
        if self.target.profile.circulates and counter == "ingress_drops":
            found[Drop.TRUNCATED] += self.drops("egress_drops")[Drop.TRUNCATED]
        return found

    def registers(self) -> dict[str, list[Any]]:
        """Every cell of every register, but for when a circulating segment last came by, and the fence its JOIN."""
        found = self.target.control.registers()
        if self.target.profile.circulates:
            found["slot_owner"] = [cell["signature"] for cell in found["slot_owner"]]
            if self._orbit_fence is not None:
                del found["interest_owner"][self.interest_index(self._orbit_fence)]  # it joins again and again
        return found

    def heat(self, key: bytes, base_slot: int) -> int:
        """Control datagrams about a chunk that is here."""
        if self.target.profile.circulates:
            (cell,) = self.target.control.read(fy.P4CounterEntry("chunk_heat", index=base_slot))
            counted: int = cell.packet_count
            return counted
        match = fy.P4TableMatch({"key": int.from_bytes(key, "big")})
        entry = fy.P4TableEntry("kv_cache", match=match)
        (found,) = self.target.control.read(fy.P4DirectCounterEntry("chunk_heat", table_entry=entry))
        packets: int = found.data.packet_count
        return packets

    def reset(self) -> None:
        """Takes back every entry, so that the next test finds an empty switch."""
        self.target.control.delete([*self._entries, *self._groups])
        self._entries, self._groups = [], []
        self._orbit_fence = None
        self._waiting.clear()
        self.salt(UNSALTED)
        self.plain()
        self.target.control.drain_digests()

    # -- frames ----------------------------------------------------------------------------------

    def exchange(self, *frames: tuple[int, bytes], expect: int = 0) -> Received:
        """Sends (port, frame) pairs and returns what left the switch, by port, silent ports left out.

        `expect` is how many frames must have come before fences are sent: a GET of several segments
        goes round inside the switch, and a fence may overtake it.
        """
        received: dict[int, list[bytes]] = {port: [] for port in self.target.ports}
        for port, frame in frames:
            self.target.send(port, frame)
        deadline = time.monotonic() + LIMIT_S
        while sum(map(len, received.values())) < expect:
            self._collect(received, {}, deadline)
        # First a fence behind each sender's frames, so that ingress has seen them all; then one to every port.
        for port in dict.fromkeys(port for port, _ in frames):
            self._pass_fence(received, port, [other for other in self.target.ports if other != port][:1])
        if self._orbit_fence is not None and not self._expires:
            for _ in range(2):
                self._pass_orbit_fence(received, self._orbit_fence)
        self._pass_fence(received, STRANGER_PORT, [port for port in self.target.ports if port != STRANGER_PORT])
        self._pass_fence(received, MEMBER_PORTS[0], [STRANGER_PORT])
        return {port: frames for port, frames in received.items() if frames}

    def _pass_fence(self, received: dict[int, list[bytes]], port: int, at: Sequence[int]) -> None:
        payload = b"fence" + next(self._fence).to_bytes(8, "big")
        self.target.send(port, ethernet(Host(port).mac, b"\xff" * 6, payload, FENCE_ETHERTYPE))
        waiting = dict.fromkeys(at, payload)
        deadline = time.monotonic() + LIMIT_S
        while waiting:
            self._collect(received, waiting, deadline)

    def _pass_orbit_fence(self, received: dict[int, list[bytes]], key: bytes) -> None:
        host = Host(ORBIT_FENCE_PORT)
        get = self.get(key, 0, segments=1, flags=Flag.ONLY_ME)
        self.target.send(host.port, control_frame(host, Control(Op.JOIN, key), host))
        self.target.send(host.port, control_frame(host, get, host))
        deadline = time.monotonic() + LIMIT_S
        before = self._orbit_fences
        while self._orbit_fences == before:
            self._collect(received, {}, deadline)

    def _is_orbit_fence(self, frame: bytes) -> bool:
        return self._orbit_fence is not None and frame[78:94] == self._orbit_fence

    def _collect(self, received: dict[int, list[bytes]], waiting: dict[int, bytes], deadline: float) -> None:
        left = deadline - time.monotonic()
        assert left > 0, f"switch stays silent: fences missing at {sorted(waiting)}, received {counts(received)}"
        for port, frame in self.target.receive(left):
            if frame[12:14] == FENCE_ETHERTYPE.to_bytes(2, "big"):
                if port in waiting and waiting[port] in frame:
                    del waiting[port]
            elif self._is_orbit_fence(frame):
                self._orbit_fences += 1
            elif self._orbit_fence is not None and frame[58:74] == self._orbit_fence:
                pass  # the NOTICE of its JOIN
            else:
                received[port].append(frame)

    def control(self, port: int, control: Control, holder: int = 1, *, expect: int = 0) -> Received:
        """One control datagram from the host on `port` to the holder on port `holder`."""
        return self.exchange((port, control_frame(Host(port), control, Host(holder))), expect=expect)

    def ask(self, port: int, get: Control, holder: int = 1, *, expect: int = 0) -> Received:
        """A GET of somebody who waits for the chunk, if only for this one."""
        if (port, get.key) in self._waiting:
            return self.control(port, get, holder, expect=expect)
        self.join(port, get.key)
        received = self.control(port, get, holder, expect=expect)
        self.leave(port, get.key)
        return received

    def join(self, port: int, key: bytes, *, tag: int = 0) -> Received:
        self._waiting.add((port, key))
        return self.control(port, Control(Op.JOIN, key, tag=tag))

    def leave(self, port: int, key: bytes) -> Received:
        self._waiting.discard((port, key))
        return self.control(port, Control(Op.LEAVE, key))

    @staticmethod
    def get(key: bytes, segment: int, segments: int = 8, amount: int = 1, **fields: int) -> Control:
        return Control(Op.GET, key, segment, segments, count=amount, **fields)

    @staticmethod
    def clock_us() -> float:
        return time.monotonic() * 1e6

    def in_order(self, frames: Sequence[bytes]) -> list[bytes]:
        """Data frames by segment. Only segments that circulate come in another order."""
        if self.target.profile.circulates:
            return sorted(frames, key=lambda frame: parse(frame).segment)
        return list(frames)

    # -- contents --------------------------------------------------------------------------------

    def key(self) -> bytes:
        """A key with cells of its own in interest table and heat sketch, the same in every run."""
        while True:
            key = self.any_key()
            if self.claim(key):
                return key

    def any_key(self) -> bytes:
        """The next key of this test, whose cells another one may have used."""
        name = f"{self._name} {next(self._keys)}"
        return hashlib.blake2b(name.encode(), digest_size=16).digest()

    def heat_cells(self, key: bytes) -> tuple[int, int]:
        """Cells of a key in the two rows of the heat sketch; the first one is also where reports are remembered."""
        other = crc16_arc(key) if self.target.profile.circulates else signature(key) >> 16
        return signature(key) % HEAT_CELLS, other % HEAT_CELLS

    def claim(self, *keys: bytes) -> bool:
        """Takes the cells of the keys for this test, unless another one has touched one of them."""
        cells = {("interest", self.interest_index(key)) for key in keys}
        cells |= {("heat", self.heat_cells(key)[0]) for key in keys}
        if cells & self.target.used_cells:
            return False
        self.target.used_cells |= cells
        return True

    def segments(self, key: bytes, amount: int = 8, holder: int = 1, **fields: int) -> list[Segment]:
        """A chunk of `amount` segments with bytes of its own; the last one counts only in part."""
        return [
            Segment(
                Host(holder),
                key,
                index,
                amount,
                hashlib.shake_256(key + index.to_bytes(4, "big")).digest(self.segment_bytes),
                length=self.segment_bytes if index < amount - 1 else self.segment_bytes // 2 + 1,
                **fields,
            )
            for index in range(amount)
        ]


def table(name: str, match: Mapping[str, int], action: str, **parameters: int) -> fy.P4TableEntry:
    return fy.P4TableEntry(name, match=fy.P4TableMatch(match), action=fy.P4TableAction(action, **parameters))


def counts(received: Received) -> dict[int, int]:
    """How many frames came out of each port that was not silent."""
    return {port: len(frames) for port, frames in received.items()}


def notices(received: Received) -> dict[int, Control]:
    """The one NOTICE that came out of each port; checks how a NOTICE is addressed."""
    found = {}
    for port, (frame,) in received.items():
        datagram = parse(frame)
        assert datagram.headers_valid
        look(frame)
        assert (datagram.dst_mac, datagram.dst_ip, datagram.dst_port) == (GROUP_MAC, GROUP_IP, 4793)
        assert (datagram.src_mac, datagram.src_ip, datagram.src_port) == (POOL_MAC, POOL_IP, 4793)
        assert datagram.control.op == Op.NOTICE
        found[port] = datagram.control
    return found


def ip_header_from_switch(cast: bytes) -> bytes:
    """The IP header of a cast frame with the from-switch code point."""
    header = cast[14:15] + bytes([FROM_SWITCH_DSCP << 2]) + cast[16:24] + b"\0\0" + cast[26:34]
    return header[:10] + internet_checksum(header).to_bytes(2, "big") + header[12:]


def served(frame: bytes, segment: Segment) -> Datagram:
    """Checks that a frame is `segment` served by the switch, byte for byte as its holder casts it."""
    datagram = parse(frame)
    assert datagram.headers_valid
    look(frame)
    cast = segment.frame()
    assert frame[34:] == cast[34:], "UDP to ICRC differs"
    assert frame[14:34] == ip_header_from_switch(cast), "IP differs in more than DSCP and checksum"
    assert (datagram.dst_mac, datagram.src_mac) == (GROUP_MAC, POOL_MAC)
    assert datagram.icrc_valid
    return datagram
