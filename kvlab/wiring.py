"""Arguments that every command with a testbed has."""

from __future__ import annotations

import argparse

from bmv2_testbed.network.namespaces import can_unshare
from bmv2_testbed.spec import Target, Wiring
from kvcast.arguments import checked
from kvcast.cli import UsageError
from kvproto.units import parse_rate_bit_s, parse_size_bytes

rate = checked(parse_rate_bit_s)
"""An argument like 100mbit, in bit/s."""
size = checked(parse_size_bytes)
"""An argument like 16MiB, in bytes."""


def add_target(parser: argparse.ArgumentParser) -> None:
    """Which switch."""
    targets = [target.value for target in Target]
    parser.add_argument("--target", choices=targets, default=Target.P4SWITCH.value, help="which switch")


def add_no_root(parser: argparse.ArgumentParser) -> None:
    """Whether to do without namespaces."""
    parser.add_argument("--no-root", action="store_true", help="loopback datagrams instead of namespaces")


def wiring_of(no_root: bool) -> Wiring:
    """Namespaces where this process may make them; asks for `--no-root` to do without."""
    if no_root:
        return Wiring.DATAGRAMS
    if not can_unshare():
        raise UsageError("namespaces and shaped links need root: become root, or use --no-root")
    return Wiring.NAMESPACES
