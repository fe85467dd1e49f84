"""A cold store on a mounted file system (`scheme: fs`): one that a process serves by FUSE, as 3FS's and JuiceFS's are.

What is needed of a mount is what happens here: folders, files written once, read at any place, renamed within the mount
and removed. Nothing is opened with O_DIRECT, mapped or locked.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hostagent import limits
from hostagent.cold.cold_options import ColdConfig
from hostagent.cold.objects import object_name
from hostagent.core.events import ColdState, LoadOutcome, SaveOutcome
from tests.unit.hostagent.cold_harness import bench, key, round_trip

pytest.importorskip("opendal", reason="no opendal here: pip install 'kvcast[cold]'")
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not shutil.which("bindfs") or not Path("/dev/fuse").exists(), reason="needs bindfs and FUSE"),
]


class Mount:
    """A folder, served by FUSE at another one."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.below, self.at = folder / "below", folder / "mount"
        self._options = options
        for each in (self.below, self.at):
            each.mkdir()

    def up(self) -> None:
        subprocess.run(["bindfs", *self._options, self.below, self.at], check=True, capture_output=True)

    def down(self) -> None:
        subprocess.run(["umount", "--lazy", self.at], check=True, capture_output=True)


@contextlib.contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Mount]:
    """Mounted, and not any more."""
    mount = Mount(folder, *options)
    mount.up()
    try:
        yield mount
    finally:
        mount.down()


@pytest.mark.parametrize("options", [(), ("-o", "direct_io")], ids=["page cache", "direct_io"])
def test_what_one_node_writes_to_a_mount_another_one_reads(tmp_path: Path, options: tuple[str, ...]) -> None:
    async def scenario(mount: Mount) -> None:
        config = ColdConfig("fs", {"root": str(mount.at / "kvcast")}, timeout_s=5)
        async with bench(config) as made:
            await round_trip(made)
        async with bench(config) as another:
            await another.until(ColdState.ON)
            assert await another.load(2) is LoadOutcome.DONE
        files = [path.relative_to(mount.below / "kvcast") for path in mount.below.rglob("*") if path.is_file()]
        assert [str(path) for path in files] == [object_name(key(2))], "nothing half written is left below the mount"

    with mounted(tmp_path, *options) as mount:
        asyncio.run(scenario(mount))


def test_a_mount_that_refuses_writes_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COLD_RETRY_S_MIN", 0.01)
    monkeypatch.setattr(limits, "COLD_RETRY_S_MAX", 0.02)

    async def scenario(writable: Mount, root: Path) -> None:
        config = ColdConfig("fs", {"root": str(writable.at)}, timeout_s=5)
        async with bench(config) as made:
            await made.until(ColdState.ON)
            assert await made.save(2) is SaveOutcome.STORED
        async with bench(ColdConfig("fs", {"root": str(root)}, timeout_s=5)) as reader:
            await reader.until(ColdState.READING)
            assert await reader.load(2) is LoadOutcome.DONE

    (tmp_path / "ro").mkdir()
    with mounted(tmp_path) as writable:
        subprocess.run(["bindfs", "-r", writable.below, tmp_path / "ro"], check=True, capture_output=True)
        try:
            asyncio.run(scenario(writable, tmp_path / "ro"))
        finally:
            subprocess.run(["umount", "--lazy", tmp_path / "ro"], check=True, capture_output=True)
