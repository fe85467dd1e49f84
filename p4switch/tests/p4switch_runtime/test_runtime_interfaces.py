"""Ports on Linux interfaces: veth pairs in namespaces of the test's own."""

from __future__ import annotations

import hashlib
import os
import random
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from p4switch.bench.packets import PROGRAM as BENCH_PROGRAM
from p4switch.bench.packets import load as load_bench
from p4switch.compiler import compile_program
from p4switch.runtime import Direction, Faults, Pipeline, PortEvent, Program, Status, Switch
from p4switch.values import ActionCall, Replica
from p4switch_runtime.namespaces import add_veth, inside, move, namespace, run
from p4switch_runtime.runtime_frames import Op, command, ethernet, mac

pytestmark = [
    pytest.mark.root,
    pytest.mark.enters_namespace,
    pytest.mark.skipif(os.geteuid() != 0, reason="interfaces and namespaces need root"),
]
_DEADLINE_S = 30.0
_SOL_PACKET, _PACKET_AUXDATA, _PACKET_IGNORE_OUTGOING = 263, 8, 23


@pytest.fixture
def net() -> Iterator[int]:
    with namespace() as made:
        yield made


@pytest.fixture
def running(net: int, exerciser: Program) -> Iterator[Switch]:
    """The exerciser between sw1 and sw2; the far ends are h1 and h2."""
    for number in (1, 2):
        add_veth(f"sw{number}", f"h{number}")
    with Switch() as switch:
        for number in (1, 2):
            switch.add_interface(number, f"sw{number}")
        switch.commit(switch.prepare(exerciser))
        switch.start()
        wait_for(lambda: all(switch.port_stats(number).up for number in (1, 2)), "both ports come up")
        yield switch


def raw(interface: str) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    made.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    made.bind((interface, 3))
    made.settimeout(_DEADLINE_S)
    return made


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, what
        pause.wait(0.005)


def l2(switch: Switch, program: Program, ports: int) -> Pipeline:
    """An L2 pipeline with host n's MAC at port n."""
    pipeline = switch.prepare(program)
    batch = pipeline.batch()
    batch.set_multicast_group(1, [Replica(port, 1) for port in range(1, ports + 1)])
    for port in range(1, ports + 1):
        batch.insert(0, [(int.from_bytes(mac(port), "big"), 0)], ActionCall(0, (port,)))
    batch.commit()
    switch.commit(pipeline)
    return pipeline


def test_frames_of_every_length_pass_unchanged(running: Switch) -> None:
    with raw("h1") as one, raw("h2") as two:
        for size in (46, 60, 1500, 4200, 9014):
            frame = command(Op.FORWARD, 2, payload=os.urandom(size - 30) if size > 46 else b"p" * 30)
            one.send(frame)
            assert two.recv(65536) == frame


def test_bursts_arrive_whole_and_in_order(running: Switch) -> None:
    with raw("h1") as one, raw("h2") as two:
        received: list[bytes] = []

        def receive() -> None:
            received.extend(two.recv(65536) for _ in range(3000))

        reader = threading.Thread(target=receive)
        reader.start()
        frames = [command(Op.FORWARD, 2, value=n, payload=bytes(n % 1400)) for n in range(3000)]
        for frame in frames:
            one.send(frame)
        reader.join()
        assert received == frames


def test_a_vlan_tag_survives(running: Switch, l2_program: Program) -> None:
    """The kernel takes the tag off; the port puts it back."""
    l2(running, l2_program, 2)
    tagged = mac(2) + mac(1) + b"\x81\x00\x60\x07" + b"\x08\x00" + b"v" * 100
    with raw("h1") as one, raw("h2") as two:
        two.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
        one.send(tagged)
        frame, ancillary, _, _ = two.recvmsg(65536, 256)
        if frame[12:14] != b"\x81\x00":  # taken off again on its way to this socket
            [(_, _, aux)] = ancillary
            tag = int.from_bytes(aux[16:18], "little")
            frame = frame[:12] + b"\x81\x00" + tag.to_bytes(2, "big") + frame[12:]
        assert frame == tagged


def test_a_frame_above_the_mtu_is_dropped_and_counted(running: Switch) -> None:
    run("ip link set sw2 mtu 1500")
    with raw("h1") as one, raw("h2") as two:
        one.send(command(Op.FORWARD, 2, payload=bytes(3000)))
        small = command(Op.FORWARD, 2, payload=bytes(60))
        one.send(small)
        assert two.recv(65536) == small
        wait_for(lambda: running.port_stats(2).tx_dropped == 1, "the large frame is counted")


def test_an_interface_that_goes_down_comes_back(running: Switch) -> None:
    with raw("h1") as one, raw("h2") as two:
        one.send(command(Op.FORWARD, 2, payload=bytes(60)))
        two.recv(65536)
        running.events(0)
        run("ip link set sw2 down")
        wait_for(lambda: not running.port_stats(2).up, "port 2 goes down")
        one.send(command(Op.FORWARD, 2))
        wait_for(lambda: running.port_stats(2).tx_dropped == 1, "frames to it are dropped")
        assert running.events(0) == [PortEvent(2, False)]
        run("ip link set sw2 up")
        wait_for(lambda: bool(running.port_stats(2).up), "port 2 comes up")
        frame = command(Op.FORWARD, 2, payload=bytes(60))
        one.send(frame)
        assert two.recv(65536) == frame
        assert running.events(0)[-1] == PortEvent(2, True)


def test_an_interface_that_vanishes_comes_back(running: Switch) -> None:
    with raw("h1") as one:
        run("ip link del sw2")
        wait_for(lambda: not running.port_stats(2).up, "port 2 goes down")
        frame = command(Op.FORWARD, 1, payload=bytes(60))
        one.send(frame)
        assert one.recv(65536) == frame  # the others go on
        add_veth("sw2", "h2")
        wait_for(lambda: bool(running.port_stats(2).up), "port 2 is found again")
        with raw("h2") as two:
            frame = command(Op.FORWARD, 2, payload=bytes(60))
            one.send(frame)
            assert two.recv(65536) == frame
            two.send(command(Op.FORWARD, 1, payload=bytes(61)))
            assert one.recv(65536) == command(Op.FORWARD, 1, payload=bytes(61))


def test_it_is_idle_when_nothing_comes(running: Switch) -> None:
    before = running.stats().wakeups
    threading.Event().wait(0.5)
    assert running.stats().wakeups - before < 20


_UNPRIVILEGED = """
import os
from p4switch.errors import SwitchError
from p4switch.runtime import Switch

with Switch() as switch:
    os.setresuid(65534, 65534, 65534)
    try:
        switch.add_interface(1, "sw1")
    except SwitchError as error:
        print(error)
"""


def test_missing_permission_is_one_line(net: int) -> None:
    add_veth("sw1", "h1")
    done = subprocess.run([sys.executable, "-c", _UNPRIVILEGED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Permission denied: packet sockets need root or CAP_NET_RAW" in done.stdout
    assert done.stdout.count("\n") == 1


# ---------------------------------------------------------------------- what hosts leave to their NIC


class Hosts:
    """Hosts 10.0.0.n, each in a namespace of its own, at ports n of an L2 switch."""

    def __init__(self, switch: Switch, net: int, count: int) -> None:
        self._contexts = []
        self.namespaces: list[int] = []
        for number in range(1, count + 1):
            with inside(net):
                add_veth(f"sw{number}", f"h{number}", mtu=1500)
                switch.add_interface(number, f"sw{number}")
            context = namespace()
            made = context.__enter__()
            self._contexts.append(context)
            self.namespaces.append(made)
            with inside(net):
                move(f"h{number}", made)
            run(f"ip link set h{number} address {mac(number).hex(':')} up")
            run(f"ip addr add 10.0.0.{number}/24 dev h{number}")

    def socket(self, number: int, kind: int) -> socket.socket:
        """A socket at host ``number``."""
        with inside(self.namespaces[number - 1]):
            made = socket.socket(socket.AF_INET, kind)
        made.settimeout(_DEADLINE_S)
        return made

    def close(self) -> None:
        for context in reversed(self._contexts):
            context.__exit__(None, None, None)


@pytest.fixture
def lan(net: int, l2_program: Program) -> Iterator[tuple[Switch, Hosts]]:
    with Switch() as switch:
        made = Hosts(switch, net, 2)
        l2(switch, l2_program, 2)
        with inside(net):
            switch.start()
        yield switch, made
        made.close()


def transfer(made: Hosts, total: int) -> tuple[str, str]:
    """Sends ``total`` bytes by TCP from host 1 to host 2; digests of what was sent and received."""
    block = random.Random(1).randbytes(1 << 20)
    sent, received = hashlib.blake2b(), hashlib.blake2b()
    with made.socket(2, socket.SOCK_STREAM) as listener, made.socket(1, socket.SOCK_STREAM) as client:
        listener.bind(("10.0.0.2", 0))
        listener.listen(1)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(_DEADLINE_S)
                while part := connection.recv(1 << 20):
                    received.update(part)

        server = threading.Thread(target=serve)
        server.start()
        client.connect(listener.getsockname())
        for _ in range(total >> 20):
            client.sendall(block)
            sent.update(block)
        client.shutdown(socket.SHUT_WR)
        server.join()
    return sent.hexdigest(), received.hexdigest()


def test_tcp_crosses_in_super_packets(lan: tuple[Switch, Hosts]) -> None:
    switch, made = lan
    sent, received = transfer(made, 64 << 20)
    assert sent == received
    stats = switch.port_stats(2)
    assert stats.tx_bytes / stats.tx_packets > 5000  # frames alone would be 1514


def test_a_router_that_parses_tcp_keeps_super_packets(lan: tuple[Switch, Hosts]) -> None:
    """It reads transport headers but leaves them alone: checksums and segmentation stay with the NIC."""
    switch, made = lan
    route(switch, made, load_bench("ROUTE"))
    sent, received = transfer(made, 32 << 20)
    assert sent == received
    stats = switch.port_stats(2)
    assert stats.tx_bytes / stats.tx_packets > 5000


def test_faults_cut_super_packets_into_frames(lan: tuple[Switch, Hosts]) -> None:
    switch, made = lan
    switch.set_faults(2, Direction.TX, Faults(loss=0.001, duplicate=0.001, reorder=0.001))
    switch.set_faults(1, Direction.RX, Faults(loss=0.001))
    sent, received = transfer(made, 4 << 20)
    assert sent == received
    stats = switch.port_stats(2)
    assert stats.tx_bytes / stats.tx_packets < 1515


def test_udp_checksums_left_to_the_nic_are_right(lan: tuple[Switch, Hosts]) -> None:
    _, made = lan
    with made.socket(1, socket.SOCK_DGRAM) as one, made.socket(2, socket.SOCK_DGRAM) as two:
        two.bind(("10.0.0.2", 0))
        for size in (0, 1, 17, 1000, 1472, 5000):
            one.sendto(b"u" * size, two.getsockname())
            assert two.recv(65536) == b"u" * size


def test_a_memory_port_gets_complete_frames(lan: tuple[Switch, Hosts], l2_program: Program) -> None:
    """What host 1 leaves to its NIC is finished where a port cannot carry it on."""
    switch, made = lan
    switch.add_memory(3)
    pipeline = switch.pipeline
    assert pipeline is not None
    handle = pipeline.find(0, (int.from_bytes(mac(2), "big"),))
    assert handle is not None
    batch = pipeline.batch()
    batch.modify(0, handle, ActionCall(0, (3,)))
    batch.commit()
    with made.socket(1, socket.SOCK_DGRAM) as one:
        with inside(made.namespaces[0]):
            run(f"ip neigh add 10.0.0.2 lladdr {mac(2).hex(':')} dev h1")
        one.sendto(b"checksum me" * 9, ("10.0.0.2", 4000))
        segment_size = 500
        one.setsockopt(socket.IPPROTO_UDP, 103, segment_size)  # UDP_SEGMENT: one send, several datagrams
        one.sendto(bytes(range(256)) * 10, ("10.0.0.2", 4000))
    frames: list[bytes] = []

    def complete() -> bool:
        frames.extend(frame for _, frame in switch.collect(3) if frame[12:14] == b"\x08\x00" and frame[23] == 17)
        return len(frames) >= 7

    wait_for(complete, "seven datagrams arrive")
    assert [len(frame) - 42 for frame in frames] == [99, 500, 500, 500, 500, 500, 60]
    assert b"".join(frame[42:] for frame in frames[1:]) == bytes(range(256)) * 10
    for frame in frames:
        assert internet_sum(frame[14:34]) == 0xFFFF
        pseudo = frame[26:34] + b"\x00\x11" + frame[38:40]
        assert internet_sum(pseudo + frame[34:]) == 0xFFFF


_UDP_SEGMENT, _UDP_GRO = 103, 104


def send_joined(sender: socket.socket, content: bytes, size: int, address: tuple[str, int]) -> None:
    """By one buffer, which the kernel or a NIC has to cut into datagrams."""
    sender.sendmsg([content], [(socket.IPPROTO_UDP, _UDP_SEGMENT, size.to_bytes(2, "little"))], 0, address)


def receive_joined(receiver: socket.socket) -> tuple[bytes, int]:
    """What one buffer brought, and how long each of its datagrams is."""
    content, controls, _, _ = receiver.recvmsg(65536, 64)
    sizes = [int.from_bytes(value, "little") for level, kind, value in controls if kind == _UDP_GRO]
    return content, sizes[0] if sizes else len(content)


def route(switch: Switch, made: Hosts, program: Program) -> None:
    """A router between the hosts."""
    pipeline = switch.prepare(program)
    batch = pipeline.batch()
    action = program.action("BenchIngress.route").index
    for number in (1, 2):
        call = ActionCall(action, (int.from_bytes(mac(number), "big"), number))
        batch.insert(program.table("BenchIngress.routes").index, [(10 << 24 | number, 32)], call)
    assert {result.status for result in batch.commit()} == {Status.OK}
    switch.commit(pipeline)
    for number, other in ((1, 2), (2, 1)):
        with inside(made.namespaces[number - 1]):
            run(f"ip neigh add 10.0.0.{other} lladdr {mac(other).hex(':')} dev h{number}")


CONTENT = random.Random(5).randbytes(20 * 1000 + 300)


@pytest.mark.parametrize("program", ["switch", "router"])
@pytest.mark.parametrize("joins", [True, False], ids=["a reader that takes buffers", "a reader that takes datagrams"])
def test_datagrams_that_came_by_one_buffer_leave_by_one(lan: tuple[Switch, Hosts], program: str, joins: bool) -> None:
    """The program sees, counts and changes each; a router's TTL and checksum of the IP header are new."""
    switch, made = lan
    if program == "router":
        route(switch, made, load_bench("ROUTE"))
    with made.socket(1, socket.SOCK_DGRAM) as one, made.socket(2, socket.SOCK_DGRAM) as two:
        two.bind(("10.0.0.2", 0))
        one.sendto(b"resolves addresses", two.getsockname())
        two.recv(100)
        processed = switch.stats().processed
        if joins:
            two.setsockopt(socket.IPPROTO_UDP, _UDP_GRO, 1)
        send_joined(one, CONTENT, 1000, two.getsockname())
        if joins:
            assert receive_joined(two) == (CONTENT, 1000)
        else:
            assert [two.recv(65536) for _ in range(21)] == [CONTENT[at : at + 1000] for at in range(0, 20300, 1000)]
        assert switch.stats().processed - processed >= 21
        assert switch.port_stats(2).tx_packets >= 22


@pytest.mark.parametrize(
    ("change", "step"),
    [("h.ipv4.identification = 7;", 0), ("h.ports.src = h.ports.src + 1;", 1)],
    ids=["numbers that cutting would not give", "bytes that the checksum covers"],
)
def test_frames_that_cutting_would_not_make_leave_alone(
    lan: tuple[Switch, Hosts], tmp_path: Path, change: str, step: int
) -> None:
    switch, made = lan
    source = BENCH_PROGRAM.read_text().replace("h.ipv4.ttl = h.ipv4.ttl - 1;", change)
    changed = tmp_path / "changed.p4"
    changed.write_text(source)
    route(switch, made, Program.load(compile_program(changed, {"ROUTE": "1"}).shared_object_path))
    with inside(made.namespaces[1]), raw("h2") as two, made.socket(1, socket.SOCK_DGRAM) as one:
        send_joined(one, CONTENT, 1000, ("10.0.0.2", 4000))
        frames: list[bytes] = []
        while len(frames) < 21:
            frame = two.recv(65536)
            if frame[12:14] == b"\x08\x00" and frame[23] == 17:
                frames.append(frame)
        port = one.getsockname()[1]
    assert b"".join(frame[42:] for frame in frames) == CONTENT
    identifications = [int.from_bytes(frame[18:20], "big") for frame in frames]
    assert identifications == [(identifications[0] + step * place) & 0xFFFF for place in range(21)]
    changed_port = "ports" in change
    for frame in frames:
        assert int.from_bytes(frame[34:36], "big") == port + changed_port
        right = internet_sum(frame[26:34] + b"\x00\x11" + frame[38:40] + frame[34:]) == 0xFFFF
        assert right != changed_port, "the program made it wrong, and nobody mends it"


def test_datagrams_above_the_mtu_are_dropped_though_they_came_by_one_buffer(
    net: int, lan: tuple[Switch, Hosts]
) -> None:
    switch, made = lan
    with inside(net):
        run("ip link set sw2 mtu 1000")
    with made.socket(1, socket.SOCK_DGRAM) as one, made.socket(2, socket.SOCK_DGRAM) as two:
        two.bind(("10.0.0.2", 0))
        two.setsockopt(socket.IPPROTO_UDP, _UDP_GRO, 1)
        one.sendto(b"resolves addresses", two.getsockname())
        two.recv(100)
        send_joined(one, CONTENT, 1000, two.getsockname())
        send_joined(one, CONTENT, 900, two.getsockname())
        assert receive_joined(two) == (CONTENT[20000:], 300), "the last datagram of the first buffer"
        assert receive_joined(two) == (CONTENT, 900)
        assert switch.port_stats(2).tx_dropped == 20


def internet_sum(octets: bytes) -> int:
    padded = octets + b"\x00" * (len(octets) % 2)
    total = sum(int.from_bytes(padded[at : at + 2], "big") for at in range(0, len(padded), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def test_flooding_reaches_every_interface(net: int, l2_program: Program) -> None:
    for number in range(1, 6):
        add_veth(f"sw{number}", f"h{number}")
    with Switch() as switch:
        for number in range(1, 6):
            switch.add_interface(number, f"sw{number}")
        l2(switch, l2_program, 5)
        switch.start()
        sockets = [raw(f"h{number}") for number in range(1, 6)]
        frame = ethernet(0xFFFF, source=1, payload=b"f" * 2000)
        sockets[0].send(frame)
        assert [made.recv(65536) for made in sockets[1:]] == [frame] * 4
        assert not select.select([sockets[0]], [], [], 0)[0]
        for made in sockets:
            made.close()
