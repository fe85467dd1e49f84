"""The pool's memory: huge pages, the NIC's NUMA node, and faulting it in while the agent can still be stopped."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hostagent import pool_opening
from hostagent.memory.pool_memory import HUGE_PAGE_BYTES, HugePages, PoolMemory
from hostagent.pool_opening import SLICE_BYTES, Progress, prefault

GIB = 1 << 30
ROOT = Path(__file__).parents[3]
HUGE = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")


# ---------------------------------------------------------------------- touching every page


def test_progress_is_told_each_tenth_or_each_ten_seconds() -> None:
    slow = Progress(100, 0.0)
    assert [now_s for now_s in range(1, 60) if slow.is_due(now_s // 10, float(now_s))] == [10, 20, 30, 40, 50]
    quick = Progress(100, 0.0)
    assert [done for done in range(0, 101, 5) if quick.is_due(done, 2 + done / 100)] == [*range(10, 100, 10)]
    at_once = Progress(100, 0.0)
    assert not any(at_once.is_due(done, 0.5) for done in range(101)), "nobody waits half a second for a line"


def resident(memory: PoolMemory) -> int:
    """Pages of the memory that are there."""
    return os.fstat(memory.fd).st_blocks * 512 // mmap.PAGESIZE


def test_prefault_touches_every_page_and_changes_none() -> None:
    memory = PoolMemory(3 * SLICE_BYTES + mmap.PAGESIZE, prefault=False)
    try:
        memory.bytes_[-1] = 7
        assert resident(memory) == 1
        asyncio.run(prefault(memory, lambda: 0.0, lambda _done: None))
        assert resident(memory) == memory.size_bytes // mmap.PAGESIZE
        assert memory.bytes_[-1] == 7
    finally:
        memory.close()


def test_prefault_without_the_system_call_changes_nothing_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel before 5.14 does not know the advice."""
    monkeypatch.setattr("hostagent.memory.pool_memory.MADV_POPULATE_WRITE", 9999)
    memory = PoolMemory(64 * mmap.PAGESIZE, prefault=False)
    try:
        memory.bytes_[:: mmap.PAGESIZE] = 5
        memory.populate(0, memory.size_bytes)
        assert resident(memory) == 64
        assert np.all(memory.bytes_[:: mmap.PAGESIZE] == 5)
    finally:
        memory.close()


def test_prefault_can_be_cancelled_between_two_slices() -> None:
    memory = PoolMemory(8 * SLICE_BYTES, prefault=False)

    async def run() -> None:
        working = asyncio.ensure_future(prefault(memory, lambda: 0.0, lambda _done: None))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

    try:
        asyncio.run(run())
        assert 0 < resident(memory) < memory.size_bytes // mmap.PAGESIZE
    finally:
        memory.close()


@pytest.fixture
def slow_agent(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """An agent that takes 20 ms to prepare each MiB of its pool, as if the machine were slow."""
    code = """
import os, sys, time
from pathlib import Path
import hostagent.pool_opening as prefault
from hostagent.daemon import main
from hostagent.memory.pool_memory import PoolMemory
prefault.SLICE_BYTES, prefault.QUIET_S = 1 << 20, -1.0
populate = PoolMemory.populate
def slowly(self, offset, size_bytes):
    time.sleep(0.02)
    populate(self, offset, size_bytes)
PoolMemory.populate = slowly
sys.exit(main(["--config", sys.argv[1]]))
"""
    config = tmp_path / "agent.yaml"
    config.write_text(
        "node: n0\n"
        "data: {address: 127.81.0.1, read_port: 0, cast_port: 14791, control_port: 14793}\n"
        "pool: {size: 1GiB}\n"
        "http: {port: 0}\n"
        f"api: {{socket: {tmp_path}/a.sock}}\n"
        f"ready_file: {tmp_path}/ready\n"
    )
    argv = [sys.executable, "-c", code, str(config)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def listening_port(pid: int) -> int:
    """The TCP port that a process listens on, out of /proc."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        found = re.match(r"socket:\[(\d+)\]", os.readlink(fd))
        if found is not None:
            inodes.add(found[1])
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and words[9] in inodes:
            return int(words[1].rpartition(":")[2], 16)
    raise AssertionError("it listens nowhere")


def test_an_agent_that_prepares_its_memory_says_so_and_stops_when_told(
    slow_agent: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert slow_agent.stderr is not None
    line = next(line for line in slow_agent.stderr if "preparing" in line)
    assert re.search(r"preparing the pool's memory: .* of 1 GiB \(\d+ %\)", line)
    assert not (tmp_path / "ready").exists(), "ready only when the memory is"
    port = listening_port(slow_agent.pid)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=10) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10)
    assert refused.value.code == 503
    assert "the pool's memory is being prepared" in refused.value.read().decode()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10) as answer:
        assert json.load(answer)["status"] == "starting"
    slow_agent.send_signal(signal.SIGTERM)
    out, errors = slow_agent.communicate(timeout=20)
    assert (slow_agent.returncode, out) == (0, "")
    assert "stopping before it had started" in errors


# ---------------------------------------------------------------------- huge pages


def test_required_huge_pages_that_are_not_there_are_refused_with_the_remedy() -> None:
    free = int((HUGE / "free_hugepages").read_text())
    size_bytes = (free + 8) * HUGE_PAGE_BYTES
    reserved = int((HUGE / "nr_hugepages").read_text())
    with pytest.raises(OSError, match=rf"vm\.nr_hugepages={reserved + 8}, or set pool\.huge_pages: auto") as refused:
        PoolMemory(size_bytes, prefault=False, huge_pages=HugePages.REQUIRED)
    assert "\n" not in str(refused.value)


def flags_of(memory: PoolMemory) -> list[str]:
    """Of its mapping, as in proc(5)."""
    part = Path("/proc/self/smaps").read_text().partition(f"\n{memory.address:x}-")[2]
    return part.partition("VmFlags:")[2].partition("\n")[0].split()


def test_without_being_required_huge_pages_are_done_without() -> None:
    free = int((HUGE / "free_hugepages").read_text())
    memory = PoolMemory((free + 8) * HUGE_PAGE_BYTES, prefault=False, huge_pages=HugePages.IF_FREE)
    assert not memory.huge_pages
    assert "hg" in flags_of(memory), "the kernel may take transparent ones: shmem_enabled is the operator's"
    memory.close()
    plain = PoolMemory(HUGE_PAGE_BYTES, prefault=False)
    assert "hg" not in flags_of(plain)
    plain.close()


@pytest.fixture
def four_huge_pages() -> Iterator[None]:
    """Reserved for this test; skipped where the machine does not let us, or has none to give."""
    setting = HUGE / "nr_hugepages"
    before = setting.read_text()
    try:
        setting.write_text(str(int(before) + 4))
    except OSError as error:
        pytest.skip(f"vm.nr_hugepages cannot be set here: {error.strerror}")
    try:
        if int((HUGE / "free_hugepages").read_text()) < 4:
            pytest.skip("the machine has no four huge pages in one piece")
        yield
    finally:
        setting.write_text(before)


@pytest.mark.usefixtures("four_huge_pages")
def test_huge_pages_that_are_there_are_used() -> None:
    memory = PoolMemory(4 * HUGE_PAGE_BYTES, prefault=True, huge_pages=HugePages.REQUIRED, handed_on=True)
    try:
        assert memory.huge_pages
        assert int((HUGE / "free_hugepages").read_text()) == 0
        memory.view(0, 4)[:] = b"abcd"
        again = PoolMemory(memory.size_bytes, prefault=False, kept_fd=os.dup(memory.fd))
        assert again.huge_pages
        assert bytes(again.view(0, 4)) == b"abcd"
        again.close()
    finally:
        memory.close()


# ---------------------------------------------------------------------- NUMA


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine of two NUMA nodes with a NIC on the first, as sysfs shows it."""
    nodes = tmp_path / "sys/devices/system/node"
    nodes.mkdir(parents=True)
    (nodes / "has_memory").write_text("0-1\n")
    for name, node in (("eth0", "0"), ("eth1", "-1")):
        device = tmp_path / "sys/class/net" / name / "device"
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")
    return tmp_path


def test_the_node_of_the_nic(machine: Path) -> None:
    assert pool_opening.node_of("eth0", machine) == 0
    assert pool_opening.node_of("eth1", machine) is None, "the firmware does not say"
    assert pool_opening.node_of("veth0", machine) is None, "no device behind it"
    assert pool_opening.node_of(None, machine) is None
    (machine / "sys/devices/system/node/has_memory").write_text("0\n")
    assert pool_opening.node_of("eth0", machine) is None, "with one node there is nothing to prefer"


def test_lists_of_nodes(machine: Path) -> None:
    (machine / "sys/devices/system/node/has_memory").write_text("0,2-4\n")
    assert pool_opening.nodes(machine) == [0, 2, 3, 4]
    assert pool_opening.nodes(machine / "nowhere") == []


def test_the_kernel_prefers_the_node_that_it_is_told() -> None:
    """The call itself, on this machine's first node; its policy stands in numa_maps."""
    if not Path("/proc/self/numa_maps").exists() or not pool_opening.nodes():
        pytest.skip("a kernel without NUMA")
    node = pool_opening.nodes()[0]
    memory = PoolMemory(1 << 20, prefault=False)
    try:
        pool_opening.prefer(memory, node)
        lines = Path("/proc/self/numa_maps").read_text().splitlines()
        (line,) = (line for line in lines if line.startswith(f"{memory.address:x} "))
        assert f"prefer:{node}" in line.replace("=", ":")
        memory.populate(0, memory.size_bytes)
        assert resident(memory) == memory.size_bytes // mmap.PAGESIZE
    finally:
        memory.close()


def test_a_node_that_is_not_there_is_an_error() -> None:
    memory = PoolMemory(1 << 20, prefault=False)
    try:
        with pytest.raises(OSError):
            pool_opening.prefer(memory, 1000)
    finally:
        memory.close()
