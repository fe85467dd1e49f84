"""A testbed comes up beside others and leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bmv2_testbed import client, state
from bmv2_testbed.client import wait_gone
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.network import namespaces
from bmv2_testbed.processes import child_environment
from bmv2_testbed.spec import Target, TestbedSpec

NETWORK_ONLY = TestbedSpec(target=Target.BRIDGE, hosts=3, rate_bit_s=10**7, daemons=False)


def _links() -> set[str]:
    """Interfaces of this network namespace."""
    return set(re.findall(r"^\d+: ([^:@]+)", subprocess.check_output(["ip", "-o", "link"], text=True), re.MULTILINE))


def _mounts() -> str:
    return Path("/proc/self/mounts").read_text()


def _shm() -> set[str]:
    """What of kvcast's is in shared memory; other programs come and go there as they like."""
    return {name for name in os.listdir("/dev/shm") if "kvcast" in name}


def _namespace_members(kind: str, pid: int) -> list[int]:
    """Processes in the same namespace as `pid`."""
    wanted = os.readlink(f"/proc/{pid}/ns/{kind}")
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.readlink(entry / "ns" / kind) == wanted:
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
    return found


@pytest.mark.root
@pytest.mark.parametrize("victim", ["launcher", "first process"])
def test_kill_9_leaves_nothing(victim: str) -> None:
    links, mounts, shm = _links(), _mounts(), _shm()
    testbed, supervisor = client.start(NETWORK_ONLY)
    testbed.run("sleeper", "h1", ["sleep", "1000"])
    members = _namespace_members("pid", testbed.pid)
    assert len(members) >= 5  # the supervisor, a shell each host and switch, the sleeper
    assert _links() == links
    testbed.close()
    os.kill(supervisor.pid if victim == "launcher" else testbed.pid, signal.SIGKILL)
    supervisor.wait(10)
    for pid in members:
        wait_gone(pid, 10)
    assert _links() == links
    assert _mounts() == mounts
    assert _shm() == shm


@pytest.mark.root
def test_two_testbeds_live_beside_each_other() -> None:
    with client.running(NETWORK_ONLY) as one, client.running(NETWORK_ONLY) as other:
        one.run("sleeper", "h1", ["sleep", "1000"])
        assert "sleeper" not in other.status()["processes"]
        assert one.directory != other.directory


@pytest.mark.root
def test_up_status_down(tmp_path: Path) -> None:
    environment = child_environment({"XDG_RUNTIME_DIR": str(tmp_path)})

    def kvcast(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "kvcast.cli", "testbed", *words]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)

    up = kvcast("up", "--target", "bridge", "--nodes", "2")
    assert up.returncode == 0, up.stderr
    try:
        assert kvcast("up", "--target", "bridge", "--nodes", "2").stderr.count("up already") == 1
        assert "h1" in kvcast("status").stdout
        assert "10.75.0.2" in kvcast("exec", "h1", "--", "ip", "-br", "addr").stdout
        assert kvcast("exec", "h1", "--", "false").returncode == 1
        assert "no host h7" in kvcast("link", "h7", "down").stderr
    finally:
        down = kvcast("down")
    assert down.returncode == 0, down.stderr
    assert kvcast("status").returncode == 1


def test_state_of_a_dead_testbed_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    ticks = state.start_ticks(os.getpid())
    assert ticks is not None
    state.save(state.Background("mine", os.getpid(), ticks, 1, "/nowhere"))
    assert state.names() == ["mine"]
    state.save(state.Background("mine", os.getpid(), ticks + 1, 1, "/nowhere"))
    assert state.load("mine") is None
    assert state.names() == []
    with pytest.raises(TestbedError, match="testbed name"):
        state.load("../etc")


def test_kill_9_leaves_nothing_of_a_user_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "can_unshare", lambda: False)
    spec = TestbedSpec(hosts=2, pool_bytes=16 * 2**20, slots=256)
    links, mounts, shm = _links(), _mounts(), _shm()
    testbed, supervisor = client.start(spec)
    members = _namespace_members("pid", testbed.pid)
    assert os.stat(f"/proc/{testbed.pid}/ns/user").st_ino != os.stat("/proc/self/ns/user").st_ino
    testbed.close()
    supervisor.kill()
    supervisor.wait(10)
    for pid in members:
        wait_gone(pid, 10)
    assert (_links(), _mounts(), _shm()) == (links, mounts, shm)


def test_where_users_have_no_namespaces_of_their_own_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "can_unshare", lambda: False)
    monkeypatch.setattr(namespaces, "AS_ITS_OWN_ROOT", ("false",))
    with pytest.raises(TestbedError, match="need root here: this system gives users none of their own"):
        client.start(TestbedSpec(hosts=2, daemons=False))
