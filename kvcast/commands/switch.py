"""`kvcast switch`: p4switch with the data plane of this kvcast, for a switch made of interfaces of this machine."""

from __future__ import annotations

import argparse

from controlplane.core.switch.bitmap_groups import FLOOD_GROUP as TNA_FLOOD_GROUP
from controlplane.core.switch.entries import FLOOD_GROUP
from kvcast.arguments import forward_unknown, whole
from kvcast.errors import UsageError
from kvproto.programs import Architecture, program_for

EPILOG = """\
All other options go to p4switch, which carries the ports: see `p4switch --help`.

  kvcast switch -i 1@eth1 -i 2@eth2 -i 3@eth3
  kvcast switch -i 1@eth1 -i 2@eth2 --grpc 10.0.0.1:9559 --admin unix:/run/kvcast/switch.sock
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast switch`; what p4switch declares is not repeated."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--arch",
        choices=[one.value for one in Architecture],
        default=Architecture.V1MODEL.value,
        help="which of the two programs (default v1model; tna is the Tofino's, in software)",
    )
    parser.add_argument("--segment-bytes", type=whole(64), metavar="B", help="of a cached segment, as in agent.yaml")
    parser.add_argument("--slots", type=whole(1), metavar="N", help="segments that the switch has room for")
    forward_unknown(parser)


def run(args: argparse.Namespace) -> int:
    """Run the switch until SIGTERM or SIGINT."""
    from p4switch.cli import main

    return main(switch_arguments(args))


def switch_arguments(args: argparse.Namespace) -> list[str]:
    """The command line of p4switch: the program, a switch that forwards without a controller, the user's options."""
    forwarded: list[str] = args.forwarded
    if not any(word in ("-i", "--interface") or word.startswith(("-i", "--interface=")) for word in forwarded):
        raise UsageError("a switch needs ports: -i PORT@INTERFACE, once per port (see kvcast switch --help)")
    architecture = Architecture(args.arch)
    arguments = [str(program_for(architecture))]
    for name, value in (("SEGMENT_BYTES", args.segment_bytes), ("SLOTS", args.slots)):
        if value is not None:
            arguments.append(f"-D{name}={value}")
    if "--flood-group" not in forwarded:
        group = TNA_FLOOD_GROUP if architecture is Architecture.TNA else FLOOD_GROUP
        arguments += ["--flood-group", str(group)]
    return arguments + forwarded
