"""The agent as a process on file systems that are too small, full or read-only: one clear line, and it goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bmv2_testbed.network.namespaces import can_unshare
from kvclient.client import AgentClient, ChunkSource, Status
from tests.ports import free_port
from tests.unit.hostagent.agent_harness import key
from tests.unit.hostagent.disk_harness import PAGE, content

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0 or not can_unshare(), reason="needs root for mounts of its own"),
]
SLAB = 1 << 20
ROOT = Path(__file__).parents[3]


@contextmanager
def agent_on(mount_options: str, prepare: str = "true") -> Iterator[tuple[AgentClient, list[str]]]:
    """An agent whose disk is a small file system in memory, and what it has said on standard error when it is gone."""
    said: list[str] = []
    with tempfile.TemporaryDirectory(prefix="kvcast-") as folder:
        config = Path(folder) / "agent.yaml"
        ports = f"cast_port: {free_port()}, control_port: {free_port()}, read_port: 0"
        config.write_text(
            f"node: n0\ndata: {{address: 127.81.0.1, {ports}}}\npool: {{size: 4MiB, prefault: false}}\n"
            f"api: {{socket: {folder}/agent.sock}}\nhttp: {{port: 0}}\nlog_level: error\n"
            f"disk: {{path: {folder}/disk, size: {SLAB}, promote: false}}\n"
        )
        script = (
            f"mkdir {folder}/disk && mount -t tmpfs -o size=8m kvcast-test {folder}/disk && {prepare}"
            f" && mount -o remount,{mount_options} {folder}/disk"
            f" && exec {sys.executable} -m hostagent --config {config}"
        )
        process = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("kvcast-agent ready")
            with AgentClient(f"{folder}/agent.sock") as client:
                yield client, said
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()
            _, errors = process.communicate()
            said += errors.splitlines()


def works(client: AgentClient) -> None:
    client.put(key(1), None, content(1, 10_000))
    with client.fetch([key(1)], deadline_s=5) as got:
        assert (got.outcome, list(got.sources)) == (Status.OK, [ChunkSource.LOCAL])


def test_a_file_system_that_is_too_small() -> None:
    with agent_on("size=512k") as (client, said):
        works(client)
        assert client.stats()["disk_state{off}"] == 1
    assert len(said) == 1, said
    assert "disk tier off" in said[0]
    assert "no room for a slab of 1 MiB (No space left on device)" in said[0]
    assert "lower disk.size or make room" in said[0]


def test_a_file_system_that_cannot_be_written() -> None:
    with agent_on("ro") as (client, said):
        works(client)
        assert client.stats()["disk_state{off}"] == 1
    assert len(said) == 1, said
    assert "Read-only file system; make it writable or set disk.path to another folder" in said[0]


def test_a_file_system_that_runs_full() -> None:
    """The slab and the index's header have their place; there is none for a record."""
    with agent_on(f"size={SLAB + PAGE}") as (client, said):
        works(client)
        deadline_s = time.monotonic() + 20
        while not client.stats()["disk_state{reading}"]:
            assert time.monotonic() < deadline_s
        assert client.stats()["disk_failed_total{write}"] == 1
        works_still = client.put(key(2), None, content(2, 10_000))
        assert works_still.value == "stored"
    assert len(said) == 1, said
    assert "takes no more chunks, serves those it has: No space left on device" in said[0]
