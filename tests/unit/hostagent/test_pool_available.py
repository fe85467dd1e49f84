"""A pool that does not fit is refused before the kernel has to end somebody."""

from __future__ import annotations

from pathlib import Path

import pytest

from hostagent.memory import pool_memory
from hostagent.memory.available import available_bytes
from hostagent.memory.pool_memory import PoolMemory

GIB = 1 << 30


def write(root: Path, name: str, text: str) -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    write(tmp_path, "proc/meminfo", f"MemTotal: 99 kB\nMemAvailable: {20 * GIB // 1024} kB\n")
    return tmp_path


def test_without_groups_it_is_what_the_machine_has(machine: Path) -> None:
    assert available_bytes(machine) == 20 * GIB
    write(machine, "proc/self/cgroup", "0::/\n")
    assert available_bytes(machine) == 20 * GIB


def test_the_tightest_group_above_counts(machine: Path) -> None:
    write(machine, "proc/self/cgroup", "0::/pods/agent\n")
    write(machine, "sys/fs/cgroup/pods/agent/memory.max", "max\n")
    write(machine, "sys/fs/cgroup/pods/agent/memory.current", f"{GIB}\n")
    assert available_bytes(machine) == 20 * GIB
    write(machine, "sys/fs/cgroup/pods/memory.max", f"{8 * GIB}\n")
    write(machine, "sys/fs/cgroup/pods/memory.current", f"{3 * GIB}\n")
    assert available_bytes(machine) == 5 * GIB
    write(machine, "sys/fs/cgroup/pods/memory.stat", f"anon 5\ninactive_file {2 * GIB}\nactive_file 7\n")
    assert available_bytes(machine) == 7 * GIB, "cached files that nobody uses give way"


def test_version_1_counts_too(machine: Path) -> None:
    write(machine, "proc/self/cgroup", "9:cpu,cpuacct:/x\n4:memory:/agent\n0::/\n")
    write(machine, "sys/fs/cgroup/memory/agent/memory.limit_in_bytes", f"{2 * GIB}\n")
    write(machine, "sys/fs/cgroup/memory/agent/memory.usage_in_bytes", f"{3 * GIB}\n")
    assert available_bytes(machine) == 0
    write(machine, "sys/fs/cgroup/memory/agent/memory.stat", f"cache 1\ntotal_inactive_file {GIB + 4096}\n")
    assert available_bytes(machine) == 4096


def test_a_system_that_does_not_say(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None


def test_a_pool_that_does_not_fit_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_memory, "available_bytes", lambda: GIB)
    with pytest.raises(OSError, match=r"pool.size is 64 GiB, and 1 GiB of memory are available .* smaller pool.size"):
        PoolMemory(64 * GIB, prefault=True)
