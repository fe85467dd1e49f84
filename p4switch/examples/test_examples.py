"""Each example at work, on a switch with memory ports: no root, no interfaces, no controller of one's own."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import finsy as fy

from p4switch.device_config import ProgramSource
from p4switch.p4info import write_p4info
from p4switch.ports import PortOptions
from p4switch.testing import TestSwitch, memory_switch

HERE = Path(__file__).parent
ONE, TWO, EVERYBODY = "020000000001", "020000000002", "ffffffffffff"


def ethernet(dst: str, src: str, payload: bytes = bytes(46), kind: int = 0x88B5) -> bytes:
    return bytes.fromhex(dst + src) + struct.pack("!H", kind) + payload


def ipv4(dst: str, ttl: int = 64, ecn: int = 0, payload: bytes = bytes(26)) -> bytes:
    address = bytes(map(int, dst.split(".")))
    header = struct.pack("!BBHHHBBH", 0x45, ecn, 20 + len(payload), 0, 0, ttl, 17, 0) + bytes([10, 0, 0, 1]) + address
    return ethernet(TWO, ONE, header + payload, 0x0800)


def test_l2_floods_until_it_knows() -> None:
    with memory_switch(HERE / "l2.p4", ports=3) as switch:
        frame = ethernet(TWO, ONE)
        switch.send(1, frame)
        assert switch.expect(2) == switch.expect(3) == frame
        switch.command(f"table_add dmac forward 0x{TWO} => 2")
        switch.send(1, frame)
        assert switch.take_all(settled_after=2) == {2: [frame]}


def test_lpm_takes_the_longest_prefix_and_counts() -> None:
    with memory_switch(HERE / "lpm.p4", ports=3) as switch:
        switch.command("table_add routes next_hop 10.0.0.0/8 => 02:00:00:00:00:0a 2")
        switch.command("table_add routes next_hop 10.1.0.0/16 => 02:00:00:00:00:0b 3")
        switch.send(1, ipv4("10.1.2.3"))
        routed = switch.expect(3)
        assert (routed[:6].hex(), routed[22]) == ("02000000000b", 63)
        assert sum(struct.unpack("!10H", routed[14:34])) % 0xFFFF == 0  # the checksum is right
        switch.send(1, ipv4("10.9.9.9"))
        assert switch.expect(2)[:6].hex() == "02000000000a"
        switch.send(1, ipv4("11.0.0.1"))
        switch.send(1, ipv4("10.1.2.3", ttl=1))
        assert switch.take_all(settled_after=4) == {}
        assert "(60 bytes, 1 packets)" in switch.command("counter_read by_route 1")


def test_ecn_marks_what_waits_behind_others() -> None:
    slow = {2: PortOptions(rate_bits=10_000_000, burst_bytes=1000)}
    with memory_switch(HERE / "ecn.p4", ports=2, port_options=slow) as switch:
        for _ in range(20):
            switch.send(1, ipv4("10.0.0.2", ecn=1, payload=bytes(966)))
        marks = [switch.expect(2)[15] & 3 for _ in range(20)]
    assert (marks[0], marks[-1]) == (1, 1)  # the first found no queue, the last left none
    assert marks.count(3) > 5


def test_learning_a_controller_hears_where_addresses_are(tmp_path: Path) -> None:
    """The controller is made of finsy: `pip install finsy`."""
    program = HERE / "learning.p4"
    with memory_switch(program, ports=3) as switch:
        write_p4info(switch.switch.p4info, tmp_path / "learning.p4info.txtpb")
        blob = ProgramSource(program).envelope()
        options = fy.SwitchOptions(p4info=tmp_path / "learning.p4info.txtpb", p4blob=blob)
        assert asyncio.run(asyncio.wait_for(learn(switch, options), 30)) == [
            ("02:00:00:00:00:01", 3),
            ("02:00:00:00:00:02", 1),
        ]
        switch.take_all(settled_after=2)
        switch.send(1, ethernet(ONE, TWO))  # both are known by now
        assert switch.take_all(settled_after=3)[3] == [ethernet(ONE, TWO)]


async def learn(switch: TestSwitch, options: fy.SwitchOptions) -> list[tuple[str, int]]:
    """Enters two addresses where the switch has seen them."""
    learned: list[tuple[str, int]] = []
    frames = [(3, ethernet(EVERYBODY, ONE)), (1, ethernet(ONE, TWO))]
    async with fy.Switch("s1", switch.address, options) as client:
        await client.insert([fy.P4DigestEntry("seen_t", max_list_size=1)])
        switch.send(*frames[0])
        async for digest in client.read_digests("seen_t"):
            for seen in digest:
                address, port = int(seen["address"]), int(seen["port"])
                source, place = fy.P4TableMatch({"src": address}), fy.P4TableMatch({"dst": address})
                await client.insert(
                    [
                        fy.P4TableEntry("smac", match=source, action=fy.P4TableAction("known")),
                        fy.P4TableEntry("dmac", match=place, action=fy.P4TableAction("forward", port=port)),
                    ]
                )
                learned.append((address.to_bytes(6).hex(":"), port))
            await client.write([digest.ack()])
            if len(learned) == len(frames):
                return learned
            switch.send(*frames[len(learned)])
    raise AssertionError("the switch is gone")


def question(kind: int, key: int, value: int = 0) -> bytes:
    return struct.pack("!BIQ", kind, key, value)


def test_cache_answers_what_was_answered_once() -> None:
    get, answer = question(1, 7), question(2, 7, 4711)
    with memory_switch(HERE / "cache.p4", ports=2) as switch:
        switch.send(1, get)
        assert switch.expect(2) == get  # nobody knows it yet: the server is asked
        switch.send(2, answer)
        assert switch.expect(1) == answer
        switch.send(1, get)
        assert switch.take_all(settled_after=3) == {1: [answer]}
        assert "1 packets" in switch.command("counter_read answers 1")
