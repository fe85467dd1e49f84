"""`p4switch stats`: what a running switch counts, read from its HTTP address."""

from __future__ import annotations

import argparse
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from p4switch.errors import SwitchError
from p4switch.logs import printable_lines

DEFAULT_ADDRESS = "127.0.0.1:9560"
TIMEOUT_S = 5.0
ANSWER_BYTES_MAX = 16 << 20


def main(argv: Sequence[str]) -> int:
    """Print the counters. Raises SwitchError."""
    parser = argparse.ArgumentParser(prog="p4switch stats", description="Counters of a running switch.")
    parser.add_argument(
        "address",
        nargs="?",
        default=DEFAULT_ADDRESS,
        metavar="HOST:PORT",
        help="what the switch was started with as --http (default %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print all of them as JSON")
    args = parser.parse_args(argv)
    stats = fetch(args.address)
    print(json.dumps(stats, indent=1) if args.json else printable_lines("\n".join(lines(stats))))
    return 0


def fetch(address: str) -> dict[str, Any]:
    """The page /stats. Raises SwitchError, which says what answers there and what to do."""
    try:
        with urllib.request.urlopen(f"http://{address}/stats", timeout=TIMEOUT_S) as answer:
            stats = json.loads(answer.read(ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        raise SwitchError(f"{address} is no p4switch: it answers {error.code} for /stats") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise SwitchError(f"no switch answers at {address} ({reason}): start it with --http {address}") from error
    if not isinstance(stats, dict) or not {"switch", "ports", "tables", "groups", "p4runtime"} <= stats.keys():
        raise SwitchError(f"{address} is no p4switch: its /stats are something else")
    return stats


def lines(stats: Mapping[str, Any]) -> Iterator[str]:
    """For people; counters that are zero are left out."""
    yield f"program: {stats['program'] or 'none'}"
    yield f"switch: {_nonzero(stats['switch'])}"
    for number, port in stats["ports"].items():
        counters = {name: value for name, value in port.items() if name not in ("medium", "up")}
        yield f"port {number} ({port['medium']}, {'up' if port['up'] else 'down'}): {_nonzero(counters)}"
    for name, use in stats["tables"].items():
        yield f"table {name}: {use['entries']} of {use['size']} entries"
    for group, count in stats["groups"].items():
        yield f"multicast group {group}: {count} copies"
    sessions = stats["p4runtime"]
    yield f"P4Runtime: {sessions['streams']} streams" + "".join(
        f", {f'role {role}' if role else 'default role'} {'has a primary' if primary else 'has no primary'}"
        for role, primary in sessions["roles"].items()
    )


def _nonzero(counters: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in counters.items() if value) or "nothing"
