"""What engines have registered with devices: they say it to their agent, and the doctor asks that."""

from __future__ import annotations

from pathlib import Path

from kvcast.doctor.findings import Level
from kvcast.doctor.rail_checks import registered
from kvclient.client import AgentClient
from tests.unit.hostagent.agent_harness import MIB, cluster


def a_gpu(root: Path) -> Path:
    device = root / "sys/bus/pci/devices/0000:13:00.0"
    device.mkdir(parents=True)
    (device / "class").write_text("0x030200\n")
    return root


def test_the_doctor_says_what_engines_have_registered(tmp_path: Path) -> None:
    with cluster(1) as made:
        path = made.agents[0].config.api_socket
        assert registered(path, tmp_path) == [], "a node without GPUs"
        root = a_gpu(tmp_path)
        assert registered(path, root) == [], "no engine"
        with AgentClient(path) as one, AgentClient(path) as other:
            (found,) = registered(path, root)
            assert (found.level, found.found) == (Level.NOTE, "0 B, 2 connections of engines")
            for client, size_bytes in ((one, 3 * MIB), (other, MIB)):
                client.registered_bytes = size_bytes
                assert client.stats()["registered_bytes"] == size_bytes
            assert one.stats()["engines_registered_bytes"] == 4 * MIB
            assert registered(path, root)[0].level is Level.OK
        made.until(lambda: made.agents[0].api.connections_count == 0)
        assert registered(path, root) == []
    assert registered(path, root) == [], "no agent"
