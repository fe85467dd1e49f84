"""Ports on UNIX and UDP datagram sockets, one frame a datagram, as QEMU speaks; also with the packet thread running."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from p4switch.errors import SwitchError
from p4switch.runtime import Pipeline, Program, Switch, SwitchConfig
from p4switch.values import ActionCall, Replica
from p4switch_runtime.runtime_frames import Op, command, ethernet, mac

_DEADLINE_S = 10.0


def bound(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.bind(str(path))
    made.settimeout(_DEADLINE_S)
    return made


def udp() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", 0))
    made.settimeout(_DEADLINE_S)
    return made


@pytest.fixture
def running(exerciser: Program) -> Iterator[Switch]:
    with Switch(SwitchConfig(cpu_port=255)) as switch:
        switch.commit(switch.prepare(exerciser))
        switch.start()
        yield switch


def test_frames_pass_between_unix_sockets(running: Switch, tmp_path: Path) -> None:
    with bound(tmp_path / "h1") as one, bound(tmp_path / "h2") as two:
        running.add_unix(1, tmp_path / "p1", tmp_path / "h1")
        running.add_unix(2, tmp_path / "p2", tmp_path / "h2")
        for size in (1, 100, 9000, 60000):
            frame = command(Op.FORWARD, 2, payload=b"u" * size)
            one.sendto(frame, str(tmp_path / "p1"))
            assert two.recv(65536) == frame
        assert running.port_stats(2).tx_packets == 4


def test_a_peer_that_restarts_is_found_again(running: Switch, tmp_path: Path) -> None:
    running.add_unix(1, tmp_path / "p1", tmp_path / "h1")
    running.inject(1, command(Op.FORWARD, 1))  # nobody there yet
    assert running.port_stats(1).tx_dropped == 1
    for attempt in range(3):
        with bound(tmp_path / "h1") as peer:
            frame = command(Op.FORWARD, 1, value=attempt)
            running.inject(1, frame)
            assert peer.recv(65536) == frame
            peer.sendto(frame, str(tmp_path / "p1"))  # the successor of a connected peer may send too
            assert peer.recv(65536) == frame
        (tmp_path / "h1").unlink()


def test_a_slow_unix_peer_gets_everything(running: Switch, tmp_path: Path) -> None:
    """The kernel queues a handful of datagrams; the port's backlog keeps the rest."""
    with bound(tmp_path / "h1") as peer:
        running.add_unix(1, tmp_path / "p1", tmp_path / "h1")
        for number in range(500):
            running.inject(1, command(Op.FORWARD, 1, value=number))
        received = [int.from_bytes(peer.recv(65536)[22:30], "big") for _ in range(500)]
    assert received == list(range(500))
    assert running.port_stats(1).tx_queue_dropped == 0


def test_peers_that_read_nothing_leave_buffers_to_the_others(running: Switch, tmp_path: Path) -> None:
    stalled = range(10, 18)
    with contextlib.ExitStack() as open_sockets:
        for port in stalled:
            open_sockets.enter_context(bound(tmp_path / f"h{port}"))
            running.add_unix(port, tmp_path / f"p{port}", tmp_path / f"h{port}")
        running.add_memory(1)
        for port in stalled:
            for _ in range(1500):
                running.inject(1, command(Op.FORWARD, port))
        frame = command(Op.FORWARD, 1)
        running.inject(1, frame)
        assert running.collect(1) == [(1, frame)]
        assert running.stats().no_buffer == 0
        assert sum(running.port_stats(port).tx_queue_dropped for port in stalled) > 0


def test_frames_pass_between_udp_sockets(running: Switch) -> None:
    with udp() as one, udp() as two:
        first = running.add_udp(1, ("127.0.0.1", 0), one.getsockname())
        running.add_udp(2, ("127.0.0.1", 0), two.getsockname())
        frame = command(Op.FORWARD, 2, payload=b"d" * 1400)
        one.sendto(frame, first)
        assert two.recv(65536) == frame


def test_a_udp_port_without_a_peer_learns_it(running: Switch) -> None:
    with udp() as one:
        address = running.add_udp(1, ("127.0.0.1", 0))
        frame = command(Op.FORWARD, 1)
        one.sendto(frame, address)
        assert one.recv(65536) == frame


def test_broadcast_over_mixed_ports(running: Switch, l2_program: Program, tmp_path: Path) -> None:
    pipeline: Pipeline = running.prepare(l2_program)
    batch = pipeline.batch()
    batch.set_multicast_group(1, [Replica(port, 1) for port in (1, 2, 3)])
    batch.insert(0, [(int.from_bytes(mac(3), "big"), 0)], ActionCall(0, (3,)))
    batch.commit()
    running.commit(pipeline)
    with bound(tmp_path / "h1") as one, udp() as two:
        running.add_unix(1, tmp_path / "p1", tmp_path / "h1")
        second = running.add_udp(2, ("127.0.0.1", 0), two.getsockname())
        running.add_memory(3)
        frame = ethernet(0xFFFF, payload=b"b" * 5000)
        one.sendto(frame, str(tmp_path / "p1"))
        assert two.recv(65536) == frame
        assert not select.select([one], [], [], 0)[0]
        one.sendto(ethernet(3), str(tmp_path / "p1"))
        two.sendto(ethernet(0xFFFF), second)
        assert one.recv(65536) == ethernet(0xFFFF)
        assert running.collect(3) == [(3, frame), (3, ethernet(3)), (3, ethernet(0xFFFF))]


def test_a_left_over_socket_file_is_replaced(running: Switch, tmp_path: Path) -> None:
    bound(tmp_path / "p1").close()
    running.add_unix(1, tmp_path / "p1", tmp_path / "h1")
    running.remove_port(1)
    assert not (tmp_path / "p1").exists()


def test_errors_name_what_is_wrong(running: Switch, tmp_path: Path) -> None:
    with bound(tmp_path / "taken"), udp() as held:
        with pytest.raises(SwitchError, match="taken: Address already in use"):
            running.add_unix(1, tmp_path / "taken", tmp_path / "h1")
        with pytest.raises(SwitchError, match=f"127.0.0.1 port {held.getsockname()[1]}: Address already in use"):
            running.add_udp(1, held.getsockname())
    with pytest.raises(SwitchError, match="not a numeric address"):
        running.add_udp(1, ("localhost.invalid", 1))
    with pytest.raises(SwitchError, match="longer than"):
        running.add_unix(1, tmp_path / ("x" * 200), tmp_path / "h1")
    with pytest.raises(SwitchError, match="no such interface"):
        running.add_interface(1, "nosuchif0")
    with pytest.raises(SwitchError, match="port 255 cannot be used"):
        running.add_memory(255)
    with pytest.raises(SwitchError, match="there is no port 9"):
        running.port_stats(9)
    running.add_memory(1)
    with pytest.raises(SwitchError, match="port 1 is already in use"):
        running.add_memory(1)


def test_a_closed_switch_says_so(exerciser: Program) -> None:
    switch = Switch()
    pipeline = switch.prepare(exerciser)
    switch.close()
    switch.close()
    assert switch.events(None) == []
    with pytest.raises(SwitchError, match="closed"):
        switch.stats()
    with pytest.raises(SwitchError, match="closed"):
        pipeline.entries(0)
