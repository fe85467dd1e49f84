"""A CPU group of its own for a benchmark: found in both versions of control groups, made, left and removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bmv2_testbed.cpu_group import CpuController, find_controller, sweep
from bmv2_testbed.errors import TestbedError

_SHOW = """
import os
from pathlib import Path
from bmv2_testbed.cpu_group import isolated
here = lambda: Path("/proc/self/cgroup").read_text()
before = here()
with isolated(busy_loops=1) as words:
    print(words)
    assert f"kvcast-bench-{os.getpid()}" in here()
assert here() == before
print(os.getpid())
"""


def test_a_hierarchy_of_its_own_has_shares() -> None:
    found = find_controller("cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\n")
    assert (found.root, found.weight_file) == (Path("/sys/fs/cgroup/cpu,cpuacct"), "cpu.shares")


def test_the_unified_hierarchy_hands_the_controller_down(tmp_path: Path) -> None:
    control = tmp_path / "cgroup.subtree_control"
    control.write_text("memory pids")
    found = find_controller(f"proc /proc proc rw 0 0\ncgroup2 {tmp_path} cgroup2 rw 0 0\n")
    assert (found.root, found.weight_file) == (tmp_path, "cpu.weight")
    assert control.read_text() == "+cpu"


def test_a_machine_without_groups_says_so(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="leave out --isolate"):
        find_controller("proc /proc proc rw 0 0\n")
    with pytest.raises(TestbedError, match="does not hand out the CPU controller"):
        find_controller(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n")


def test_a_group_that_may_not_be_made_names_the_remedy(tmp_path: Path) -> None:
    found = find_controller(f"cgroup {tmp_path / 'gone'} cgroup rw,cpu 0 0\n")
    with pytest.raises(TestbedError, match="No such file or directory; be root with a writable /sys/fs/cgroup"):
        found.make("group", 1)


@pytest.fixture
def controller() -> CpuController:
    """This machine's, if groups may be made here."""
    try:
        found = find_controller(Path("/proc/self/mounts").read_text())
        found.make(f"kvcast-test-{os.getpid()}", 1024).rmdir()
    except TestbedError as error:
        pytest.skip(str(error))
    return found


@pytest.mark.root
def test_work_inside_is_in_the_group_and_the_group_goes(controller: CpuController) -> None:
    done = subprocess.run([sys.executable, "-c", _SHOW], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "in a CPU group of its own" in done.stdout
    assert "1 busy loops beside it" in done.stdout
    name = f"kvcast-bench-{done.stdout.split()[-1]}"
    assert not (controller.root / name).exists()
    assert not (controller.root / f"{name}-busy").exists()


@pytest.mark.root
def test_groups_of_benches_that_were_killed_go_with_the_next_one(controller: CpuController) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = [controller.make(f"kvcast-bench-{gone.pid}{end}", 1024) for end in ("", "-busy")]
    mine = controller.make(f"kvcast-bench-{os.getpid()}", 1024)
    try:
        sweep(controller)
        assert not any(group.exists() for group in left)
        assert mine.exists()
    finally:
        mine.rmdir()
