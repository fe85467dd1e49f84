"""How much memory this process may still take: what the machine has, and what its control groups allow."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path("/")


def available_bytes(root: Path = _ROOT) -> int | None:
    """The least of MemAvailable (proc_meminfo(5)) and of what each memory cgroup above this process leaves.

    None: the system does not say. `root`: where /proc and /sys are found.
    """
    found = [_machine_bytes(root), *_cgroup_bytes(root)]
    return min((one for one in found if one is not None), default=None)


def _machine_bytes(root: Path) -> int | None:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _cgroup_bytes(root: Path) -> list[int]:
    """Limit less use of each group from this process's own up to the root, version 2 or 1 (cgroups(7))."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    left = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base, limit, use, cache = root / "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            base, cache = root / "sys/fs/cgroup/memory", "total_inactive_file"
            limit, use = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder == base.parent:
                break
            left += _left(folder / limit, folder / use, folder / "memory.stat", cache)
    return left


def _left(limit: Path, use: Path, stat: Path, cache: str) -> list[int]:
    """A group's limit less its use, without cached files that nobody has used for a while: those give way."""
    try:
        left_bytes = int(limit.read_text()) - int(use.read_text())
    except (OSError, ValueError):
        return []  # "max", or a group that this process does not see
    try:
        figures = dict(line.split(" ", 1) for line in stat.read_text().splitlines())
        left_bytes += int(figures.get(cache, 0))
    except (OSError, ValueError):
        pass  # without that figure it is the least that is left
    return [max(0, left_bytes)]
