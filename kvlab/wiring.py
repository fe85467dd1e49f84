"""Arguments that every command with a testbed has."""

from __future__ import annotations

import argparse

from bmv2_testbed.spec import Target
from kvcast.arguments import checked
from kvproto.units import parse_rate_bit_s, parse_size_bytes

rate = checked(parse_rate_bit_s)
"""An argument like 100mbit, in bit/s."""
size = checked(parse_size_bytes)
"""An argument like 16MiB, in bytes."""


def add_target(parser: argparse.ArgumentParser) -> None:
    """Which switch."""
    targets = [target.value for target in Target]
    parser.add_argument("--target", choices=targets, default=Target.P4SWITCH.value, help="which switch")
