"""What a guest boots: Debian's kernel, unpacked, and an initramfs with the modules that soft-RoCE needs.

Built once per kernel version under the user's cache directory, from packages that apt downloads and verifies; nothing
is installed. `python -m bmv2_testbed.guests.image` builds it; everything else only asks whether it is there.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bmv2_testbed.errors import TestbedError
from p4switch.errors import SwitchError
from p4switch.own_folder import own_folder

QEMU: Final = "qemu-system-x86_64"
BUSYBOX: Final = Path("/bin/busybox")
KERNEL_PACKAGE: Final = "linux-image-amd64"
_INIT: Final = Path(__file__).with_name("initramfs_init.sh")
_MODULES: Final = (
    *("virtio/virtio_ring", "virtio/virtio", "virtio/virtio_pci_modern_dev", "virtio/virtio_pci_legacy_dev"),
    *("virtio/virtio_pci", "net/core/failover", "net/net_failover", "net/virtio_net", "char/virtio_console"),
    *("char/hw_random/virtio-rng", "fs/netfs/netfs", "fs/fscache/fscache", "net/9p/9pnet", "fs/9p/9p"),
    *("net/9p/9pnet_virtio", "fs/overlayfs/overlay", "net/ipv4/udp_tunnel", "net/ipv6/ip6_udp_tunnel"),
    *("infiniband/core/ib_core", "infiniband/core/ib_uverbs", "arch/x86/crypto/crc32-pclmul"),
    *("crypto/crc32_generic", "infiniband/sw/rxe/rdma_rxe"),
)
"""In the order in which they have to be loaded."""
_DIRECTORIES: Final = ("bin", "dev", "host", "modules", "over", "proc", "root", "sys")
_XZ: Final = b"\xfd7zXZ\x00"
_ELF: Final = b"\x7fELF"


@dataclass(frozen=True, slots=True)
class GuestImage:
    """Files to boot from."""

    kernel: Path
    initramfs: Path


CHECKOUT_CACHE: Final = Path(__file__).resolve().parents[2] / "build" / "cache"
"""What the Makefile sets XDG_CACHE_HOME to."""


def cache_directory() -> Path:
    """Where images lie: kvcast/guests in $XDG_CACHE_HOME, else where `make roce` puts them, or in ~/.cache."""
    built = CHECKOUT_CACHE if CHECKOUT_CACHE.is_dir() else Path.home() / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or built) / "kvcast" / "guests"


def why_not_ready() -> str:
    """One line on what guests lack on this machine; empty when nothing is missing."""
    if shutil.which(QEMU) is None:
        return f"guests need {QEMU} (make roce)"
    for tool, package in (("ip", "iproute2"), ("rdma", "iproute2"), ("ibv_devices", "ibverbs-utils")):
        if shutil.which(tool, path=os.environ.get("PATH", "") + ":/sbin:/usr/sbin") is None:
            return f"guests need {tool} of Debian's {package} (make roce)"
    if find() is None:
        return "the guests' image is not built (make roce)"
    return ""


def find() -> GuestImage | None:
    """The image that was built last, if it was built from the present version of its ingredients."""
    try:
        own_folder(cache_directory())
    except SwitchError as error:  # a guest's kernel and programs see this machine's folders
        raise TestbedError(f"{error}; name a folder of your own as XDG_CACHE_HOME") from error
    found = sorted(cache_directory().glob(f"*-{_recipe_digest()}"), key=lambda path: path.stat().st_mtime)
    return _image_in(found[-1]) if found else None


def build() -> GuestImage:
    """Build it unless it is there. Raises TestbedError."""
    found = find()
    if found is not None:
        return found
    if not BUSYBOX.exists():
        raise TestbedError(f"no {BUSYBOX}: install Debian's busybox-static (make roce)")
    package = _kernel_package()
    cache = cache_directory()
    final = cache / f"{package}-{_recipe_digest()}"
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        tree = Path(scratch) / "tree"
        _download_and_unpack(package, Path(scratch), tree)
        made = Path(scratch) / "image"
        made.mkdir()
        image = _image_in(made)
        (kernel,) = (tree / "boot").glob("vmlinuz-*")
        image.kernel.write_bytes(unpack_kernel(kernel.read_bytes()))
        image.initramfs.write_bytes(_initramfs(tree))
        shutil.rmtree(final, ignore_errors=True)
        made.rename(final)
    return _image_in(final)


def _image_in(directory: Path) -> GuestImage:
    return GuestImage(directory / "vmlinux", directory / "initramfs")


def _recipe_digest() -> str:
    recipe = _INIT.read_bytes() + Path(__file__).read_bytes()
    return hashlib.blake2b(recipe, digest_size=6).hexdigest()


def _kernel_package() -> str:
    """Name of the package that the meta package stands for."""
    said = _run(["apt-cache", "depends", KERNEL_PACKAGE])
    match = re.search(r"Depends: (linux-image-\S+)", said)
    if match is None:
        raise TestbedError(f"apt knows no {KERNEL_PACKAGE}: run apt-get update on a Debian or Ubuntu for amd64")
    return match[1]


def _download_and_unpack(package: str, scratch: Path, tree: Path) -> None:
    _run(["apt-get", "download", "-o", "APT::Sandbox::User=root", package], cwd=scratch)
    (archive,) = scratch.glob("*.deb")
    tree.mkdir()
    _run(["dpkg-deb", "-x", str(archive), str(tree)])
    archive.unlink()


def _run(argv: Sequence[str], cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise TestbedError(f"no {argv[0]}: guests are built on Debian or Ubuntu") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["it said nothing"]
        raise TestbedError(f"{' '.join(argv[:2])} failed: {lines[-1]}")
    return done.stdout


def unpack_kernel(packed: bytes) -> bytes:
    """The ELF inside a bzImage: QEMU boots it at once, while unpacking in software emulation takes seconds."""
    start = packed.find(_XZ)
    while start >= 0:
        try:
            kernel = lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(packed[start:])
        except lzma.LZMAError:
            kernel = b""
        if kernel.startswith(_ELF):
            return kernel
        start = packed.find(_XZ, start + 1)
    # Packed in another way: QEMU can boot it as it is.
    return packed


def _initramfs(tree: Path) -> bytes:
    """A cpio archive (newc) of busybox, init and the modules."""
    archive = bytearray()
    for directory in _DIRECTORIES:
        archive += cpio_entry(directory, 0o40755, b"")
    archive += cpio_entry("bin/busybox", 0o100755, BUSYBOX.read_bytes())
    archive += cpio_entry("init", 0o100755, _INIT.read_bytes())
    order = []
    for module in _MODULES:
        path = next(tree.rglob(f"*/{module}.ko"), None)
        if path is None:
            raise TestbedError(f"Debian's kernel package has no module {module}")
        archive += cpio_entry(f"modules/{path.name}", 0o100644, path.read_bytes())
        order.append(path.name)
    archive += cpio_entry("modules/order", 0o100644, "".join(f"{name}\n" for name in order).encode())
    archive += cpio_entry("TRAILER!!!", 0, b"")
    return bytes(archive)


def cpio_entry(name: str, mode: int, content: bytes) -> bytes:
    """One file of a newc archive (Linux, Documentation/driver-api/early-userspace/buffer-format.rst)."""
    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % value for value in fields) + name.encode() + b"\0"
    return head + bytes(-len(head) % 4) + content + bytes(-len(content) % 4)


def main() -> int:
    """Entry point: build, and say where it is."""
    try:
        image = build()
    except TestbedError as error:
        print(f"guest image: {error}", file=sys.stderr)
        return 1
    print(f"guest image: {image.kernel.parent}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
