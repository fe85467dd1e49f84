"""Network namespaces of a test's own: made without names, gone with their last descriptor."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def _current() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def run(command: str) -> None:
    subprocess.run(command, shell=True, check=True, capture_output=True)


@contextmanager
def namespace() -> Iterator[int]:
    """A new namespace for the calling thread while the context lasts; the descriptor names it."""
    home = _current()
    if _libc.unshare(_CLONE_NEWNET) != 0:
        os.close(home)
        raise OSError(ctypes.get_errno(), "unshare")
    made = _current()
    try:
        run("ip link set lo up")
        yield made
    finally:
        _enter(home)
        os.close(home)
        os.close(made)


@contextmanager
def inside(made: int) -> Iterator[None]:
    """The calling thread in an existing namespace while the context lasts."""
    home = _current()
    _enter(made)
    try:
        yield
    finally:
        _enter(home)
        os.close(home)


def add_veth(first: str, second: str, mtu: int = 9000) -> None:
    """A veth pair in the calling thread's namespace, both ends up, no IPv6 chatter on them."""
    run(f"ip link add {first} mtu {mtu} type veth peer name {second} mtu {mtu}")
    for name in (first, second):
        Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")
        run(f"ip link set {name} up")


def move(name: str, made: int) -> None:
    """An interface into another namespace."""
    run(f"ip link set {name} netns /proc/{os.getpid()}/fd/{made}")
