"""One fetch of a prefix through the agent of this host, compared byte by byte; a line of JSON says how it went.

For hosts that share nothing with each other but a directory: it says READY=1 (sd_notify) once it has loaded and the
prefix is known, and starts when the `--go` file appears.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from bmv2_testbed.bench.reader import read_once
from bmv2_testbed.bench.sources import PoolSource
from bmv2_testbed.content import add_prefix_arguments, prefix_of
from bmv2_testbed.limits import GUEST_START_DEADLINE_S
from kvdaemon.notify import notify_ready

_POLL_S = 0.02


def main() -> int:
    """Entry point: exit status 0 when every byte was right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agent", required=True, help="the agent's socket")
    parser.add_argument("--go", type=Path, help="start when this file is there")
    parser.add_argument("--deadline", type=float, required=True, help="of the fetch, in seconds")
    add_prefix_arguments(parser)
    args = parser.parse_args()
    prefix = prefix_of(args)
    expected = prefix.contents()
    source = PoolSource(args.agent, args.deadline)
    source.await_known(prefix, GUEST_START_DEADLINE_S)
    notify_ready()
    while args.go is not None and not args.go.exists():
        time.sleep(_POLL_S)
    report = read_once(source, prefix, expected, time.monotonic())
    source.close()
    print(json.dumps(report))
    return 0 if report["verified"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
