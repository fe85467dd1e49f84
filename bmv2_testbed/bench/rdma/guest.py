"""The RDMA transport beside minimal programs on the same two soft-RoCE ports: `python -m bmv2_testbed.bench.rdma`.

Boots one guest with two nodes and runs in turn, three times: reads by the transport, `ib_read_bw`, a loop of pyverbs
READs; casts received by the transport, and by a loop of pyverbs that only posts and polls. The medians are shown.
They are from software emulation: ratios say something, rates do not.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from bmv2_testbed.errors import TestbedError
from bmv2_testbed.guests import image, pair
from bmv2_testbed.processes import child_environment, python_module

_TIMEOUT_S = 300.0


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    parser.add_argument("--seconds", type=float, default=5.0, help="about how long each program runs in all")
    args = parser.parse_args()
    missing = image.why_not_ready()
    if missing:
        print(f"bench rdma: {missing}", file=sys.stderr)
        return 1
    try:
        with tempfile.TemporaryDirectory() as directory, pair.running(Path(directory)) as guest:
            argv = python_module("bmv2_testbed.bench.rdma_inside", "--seconds", str(args.seconds))
            environment = child_environment({"PATH": os.environ["PATH"] + ":/usr/sbin:/usr/bin:/sbin:/bin"})
            status, out, err = guest.run(argv, environment, _TIMEOUT_S)
    except TestbedError as error:
        print(f"bench rdma: {error}", file=sys.stderr)
        return 1
    if status != 0:
        print(f"bench rdma: {(err or out).strip()[-2000:]}", file=sys.stderr)
        return 1
    figures = json.loads(out.splitlines()[-1])
    for name, value in figures.items():
        print(f"{name:40} {value:12.2f}")
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
