"""``python -m p4switch.bench [--json FILE] [--quick] [PART ...]``"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from p4switch.bench import packets, peer, sockets, wire
from p4switch.bench.packets import Measurement
from p4switch.errors import SwitchError


def parts(quick: bool) -> Mapping[str, Callable[[], Iterator[Measurement]]]:
    """The parts of the benchmark by name, in their order."""
    exact = (1, 1000, 100_000) if quick else (1, 1000, 100_000, 1_000_000)
    prefixes = (1, 100, 10_000) if quick else (1, 100, 10_000, 1_000_000)
    return {
        "forwarding": packets.forwarding,
        "exact": lambda: packets.exact(exact),
        "lpm": lambda: packets.prefixes(prefixes),
        "ternary": lambda: packets.ternary(10_000),
        "wire": wire.forwarding,
        "sockets": sockets.sending,
        "simple_switch": peer.comparison,
    }


def line(m: Measurement) -> str:
    """A row of the table."""
    ratio = f"{m.ratio:5.2f} of {m.against}" if m.against else ""
    return f"{m.name:52s} {m.packets_per_second:12,.0f}/s {m.ns_per_packet:9,.0f} ns  {ratio}"


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; returns 0, or 2 after one line that says what is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m p4switch.bench", description="How fast the switch is on this machine."
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--quick", action="store_true", help="smaller tables")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(parts(quick=True))} (default: all)")
    options = parser.parse_args(arguments)
    known = parts(options.quick)
    unknown = [part for part in options.parts if part not in known]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}; there are {', '.join(known)}")
    figures: list[Measurement] = []
    try:
        for part in options.parts or known:
            for measurement in known[part]():
                figures.append(measurement)
                print(line(measurement), flush=True)
    except SwitchError as error:
        print(f"p4switch.bench: {error}", file=sys.stderr)
        return 2
    finally:
        if options.json is not None:
            options.json.write_text(json.dumps([dataclasses.asdict(figure) for figure in figures], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
