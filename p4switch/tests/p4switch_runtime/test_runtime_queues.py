"""A link that the kernel slows down fills the queue of its port in the switch, where programs see it."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from p4switch.compiler import compile_program
from p4switch.runtime import Program, Switch
from p4switch_compiler.programs import program
from p4switch_runtime.namespaces import add_veth, namespace, run

pytestmark = [
    pytest.mark.root,
    pytest.mark.enters_namespace,
    pytest.mark.skipif(os.geteuid() != 0, reason="interfaces and namespaces need root"),
]

FRAME_BYTES, FRAMES = 1400, 1000
DEADLINE_S = 60.0


def test_a_slow_link_is_seen_as_depth(tmp_path: Path) -> None:
    """More than the kernel holds comes at once; some of it finds a queue, and all that finds room arrives."""
    source = tmp_path / "depth.p4"
    fields = "bit<112> ethernet; bit<32> enq; bit<32> deq;"
    source.write_text(
        program(fields=fields, egress="h.d.enq = (bit<32>)s.enq_qdepth; h.d.deq = (bit<32>)s.deq_qdepth;")
    )
    loaded = Program.load(compile_program(source).shared_object_path)
    with namespace(), Switch() as switch:
        add_veth("slow", "far")
        run("tc qdisc add dev slow root tbf rate 20mbit burst 16k limit 4m")
        switch.add_interface(1, "slow")
        switch.add_memory(0)
        switch.commit(switch.prepare(loaded))
        switch.start()
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as far:
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
            far.bind(("far", 3))
            far.settimeout(DEADLINE_S)
            deadline = time.monotonic() + DEADLINE_S
            while not switch.port_stats(1).up:
                assert time.monotonic() < deadline, "the port does not come up"
                time.sleep(0.01)
            frame = bytes.fromhex("020000000001020000000002aaaa").ljust(FRAME_BYTES, b"\0")
            for _ in range(FRAMES):
                switch.inject(0, frame)
            wanted = FRAMES - switch.port_stats(1).tx_queue_dropped
            assert 0 < wanted < FRAMES
            seen = [far.recv(FRAME_BYTES) for _ in range(wanted)]
        depths = [int.from_bytes(frame[14:18]) for frame in seen]
        assert depths[0] == 0
        assert max(depths) == 63, "the queue of 64 was never full"
        assert int.from_bytes(seen[-1][18:22]) == 0, "the last one left others behind"
        assert switch.port_stats(1).tx_dropped == 0
