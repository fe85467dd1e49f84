"""A testbed for engines, what its pool holds, and waiting for it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import yaml

from bmv2_testbed import client
from bmv2_testbed.spec import Target, TestbedSpec, Wiring

PATIENCE_S = 60.0
POLL_S = 0.05


@contextmanager
def running(hosts: int, pool_bytes: int) -> Iterator[client.Testbed]:
    """Nodes, a controller that moves nothing by itself, and a switch that serves nothing by itself."""
    spec = TestbedSpec(
        target=Target.P4SWITCH,
        wiring=Wiring.DATAGRAMS,
        hosts=hosts,
        pool_bytes=pool_bytes,
        controller_settings={"policy": {"admission": False}, "push": {"enabled": False}},
    )
    with client.running(spec) as made:
        yield made


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for the cluster, which tells nobody when it is done."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_s, what
        time.sleep(POLL_S)


def keys_in_pool(testbed: client.Testbed) -> list[bytes]:
    """Keys of all chunks that the controller knows."""
    listen = yaml.safe_load((testbed.directory / "controller.yaml").read_text())["listen"]
    listing = subprocess.run(
        [sys.executable, "-m", "kvcast.cli", "ls", "--json", "--limit", "0", "--controller", listen],
        check=True,
        capture_output=True,
    )
    return [bytes.fromhex(chunk["key"]) for chunk in json.loads(listing.stdout)]
