"""A CPU group of its own for a benchmark: what else the machine does gets next to nothing while the benchmark works.

`nice` cannot do this: it orders processes within one session only. Control groups can
(https://docs.kernel.org/admin-guide/cgroup-v2.html and cgroup-v1/), in both of their versions.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bmv2_testbed.errors import TestbedError

_NAME: Final = "kvcast-bench-"
_EMPTY_WITHIN_S: Final = 5.0
_LOOK_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class CpuController:
    """Where this machine's CPU groups are made, and in which words a weight is said."""

    root: Path
    weight_file: str
    weight_default: int
    weight_max: int

    def make(self, name: str, weight: int) -> Path:
        """Make a group. Raises TestbedError if it may not be made."""
        group = self.root / name
        try:
            group.mkdir()
            (group / self.weight_file).write_text(str(weight))
        except OSError as error:
            with contextlib.suppress(OSError):
                group.rmdir()
            raise TestbedError(
                f"cannot make the CPU group {group}: {error.strerror}; be root with a writable /sys/fs/cgroup, or "
                "leave out --isolate"
            ) from error
        return group


def find_controller(mounts: str, subtree_control: Path | None = None) -> CpuController:
    """The CPU controller named by the text of /proc/self/mounts. Pure but for `subtree_control`: the file of a unified
    hierarchy that hands the controller down to groups; default: the one in its root. Raises TestbedError."""
    unified: Path | None = None
    for line in mounts.splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup" and "cpu" in options.split(","):
            return CpuController(Path(where), "cpu.shares", 1024, 262_144)
        if kind == "cgroup2":
            unified = Path(where)
    if unified is None:
        raise TestbedError("no control groups are mounted at /sys/fs/cgroup: leave out --isolate")
    control = subtree_control or unified / "cgroup.subtree_control"
    try:
        if "cpu" not in control.read_text().split():
            control.write_text("+cpu")
    except OSError as error:
        raise TestbedError(
            f"{control} does not hand out the CPU controller: {error.strerror}; leave out --isolate"
        ) from error
    return CpuController(unified, "cpu.weight", 100, 10_000)


@contextlib.contextmanager
def isolated(busy_loops: int = 0) -> Iterator[str]:
    """This process and all that it starts inside run in a group of the greatest weight; yields what was done, in words.

    `busy_loops`: as many endless loops run beside it in a second group of the same weight, as other work that a
    machine may have. Raises TestbedError where groups cannot be made.
    """
    controller = find_controller(Path("/proc/self/mounts").read_text())
    before = controller.root / _own_group(controller).lstrip("/")
    if not before.is_dir():  # A container may see its groups without the path that leads to them.
        before = controller.root
    sweep(controller)
    name = f"{_NAME}{os.getpid()}"
    group = controller.make(name, controller.weight_max)
    try:
        _move(os.getpid(), group)
        try:
            with _busy(controller, f"{name}-busy", busy_loops):
                yield _words(controller, busy_loops)
        finally:
            _move(os.getpid(), before)
    finally:
        _remove(group)


def sweep(controller: CpuController) -> None:
    """Remove the groups of benchmarks that were killed; a group that still has a process stays."""
    for group in controller.root.glob(f"{_NAME}*"):
        process, _, _ = group.name.removeprefix(_NAME).partition("-")
        if not Path("/proc", process).exists():
            with contextlib.suppress(OSError):
                group.rmdir()


def _words(controller: CpuController, busy_loops: int) -> str:
    weight = f"{controller.weight_max} against {controller.weight_default}"
    beside = f"; {busy_loops} busy loops beside it, in a group of the same weight" if busy_loops else ""
    return f"in a CPU group of its own (weight {weight}){beside}"


@contextlib.contextmanager
def _busy(controller: CpuController, name: str, loops: int) -> Iterator[None]:
    if not loops:
        yield
        return
    group = controller.make(name, controller.weight_max)
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(loops):
            started.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            _move(started[-1].pid, group)
        yield
    finally:
        for loop in started:
            loop.kill()
            loop.wait()
        _remove(group)


def _own_group(controller: CpuController) -> str:
    """This process' path in the hierarchy that has the CPU controller."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        named = controllers.split(",")
        if "cpu" in named or (controllers == "" and controller.weight_file == "cpu.weight"):
            return path
    return "/"


def _move(process: int, group: Path) -> None:
    try:
        (group / "cgroup.procs").write_text(str(process))
    except OSError as error:
        raise TestbedError(f"process {process} cannot go into the CPU group {group}: {error.strerror}") from error


def _remove(group: Path) -> None:
    """Remove a group as soon as the last process has left it: those that were killed take a moment."""
    deadline_s = time.monotonic() + _EMPTY_WITHIN_S
    while True:
        try:
            group.rmdir()
            return
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise TestbedError(f"the CPU group {group} is not empty: {error.strerror}") from error
            time.sleep(_LOOK_S)
