"""Private namespaces that the kernel takes down with the process that made them.

The supervisor is the first process of a PID namespace: when it goes, by whatever signal, the kernel kills everything
that it started, and with the last process the network namespaces with their interfaces and the private mounts go too.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from bmv2_testbed.errors import TestbedError

_libc: Final = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000
MS_NOSUID: Final = 0x2
MS_NODEV: Final = 0x4
MS_NOEXEC: Final = 0x8
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 0x40000
PR_SET_PDEATHSIG: Final = 1

PRIVATE_DIRECTORY: Final = "/dev/shm/kvcast"
"""Sockets, logs and configurations of a run, on the run's own tmpfs over /dev/shm."""


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise TestbedError(f"{what}: {os.strerror(code)} (kvcast doctor testbed says what namespaces need)")


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends."""
    _check(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


AS_ITS_OWN_ROOT: Final = ("unshare", "--user", "--map-root-user", "--")
"""Begins a command line: the program is root in a user namespace of its own, of what it makes there and of nothing
else."""


def can_unshare() -> bool:
    """Whether this process may make the namespaces."""
    return _may_unshare(())


def entry() -> tuple[str, ...]:
    """What a program's command line begins with that may make the namespaces: nothing, or a user namespace around it.

    Raises TestbedError where neither is allowed.
    """
    if can_unshare():
        return ()
    if shutil.which(AS_ITS_OWN_ROOT[0]) is not None and _may_unshare(AS_ITS_OWN_ROOT):
        return AS_ITS_OWN_ROOT
    raise TestbedError(
        "namespaces need root here: this system gives users none of their own (user.max_user_namespaces, AppArmor)"
    )


def _may_unshare(words: Sequence[str]) -> bool:
    """Tried in a program of its own: nothing stays, and a process with threads (gRPC's) must not fork."""
    flags = CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWPID
    attempt = f"import ctypes; raise SystemExit(ctypes.CDLL(None).unshare({flags}))"
    argv = [*words, sys.executable, "-I", "-c", attempt]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    result = _libc.mount(
        source.encode(),
        target.encode(),
        None if kind is None else kind.encode(),
        ctypes.c_ulong(flags),
        None if options is None else options.encode(),
    )
    _check(result, f"mount {target}")


def enter_network(path: str) -> None:
    """Have this process, which must have no other threads, see the network at `path` (`/proc/PID/ns/net`) as its own.

    Raises TestbedError.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        _check(_libc.setns(handle, CLONE_NEWNET), f"setns {path}")
    finally:
        os.close(handle)
    _check(_libc.unshare(CLONE_NEWNS), "unshare")
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    _show_interfaces()


def _show_interfaces() -> None:
    """Programs look into /sys/class/net for their interfaces: it shows the namespace of who mounted it."""
    _mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def run_in_private_namespaces(body: Callable[[], int], shm_bytes: int) -> tuple[int, Callable[[], int]]:
    """Run `body` as the first process of new PID, network, mount and IPC namespaces.

    Returns the child's process id and a function that waits for its exit status. The child dies with this process.
    """
    _check(_libc.unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC), "unshare")
    alive_read, alive_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(alive_write)
        _enter(body, shm_bytes, alive_read)
    os.close(alive_read)

    def wait() -> int:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.close(alive_write)
        return status

    return child, wait


def _enter(body: Callable[[], int], shm_bytes: int, alive: int) -> NoReturn:
    die_with_parent()
    # A parent that died before prctl took effect has closed its end of the pipe.
    if select.select([alive], [], [], 0)[0]:
        raise SystemExit(1)
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    _show_interfaces()
    _mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, f"size={shm_bytes},mode=1777")
    os.mkdir(PRIVATE_DIRECTORY, 0o700)
    raise SystemExit(body())
