"""A controller whose pages are everywhere and an agent with a chunk, in a process of its own until its input ends."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from controlplane.config import parse
from controlplane.daemon import Controller
from tests.unit.controlplane.test_daemon import QUICK
from tests.unit.hostagent.agent_harness import cluster, key

KEY = key(1)
NAMESPACE = "secret plans"


def main() -> None:
    """Print the addresses of both pages, wait, end."""
    with cluster(0) as it:

        async def start() -> Controller:
            controller = Controller(parse(QUICK | {"metrics": "0.0.0.0:0"}, Path()))
            await controller.start()
            return controller

        controller = it.do(start())
        try:
            it.add(controllers=[controller.grpc_address])
            it.client(0).put(KEY, None, random.Random(1).randbytes(4096), namespace=NAMESPACE)
            it.until(lambda: it.agents[0].core.directory.find(KEY) is not None)
            port = int(controller.metrics_address.rpartition(":")[2])
            print(json.dumps({"controller_port": port, "agent": it.agents[0].http_address}), flush=True)
            sys.stdin.read()
        finally:
            for _, client in it.clients:
                client.close()
            it.clients.clear()
            for agent in it.agents:
                it.do(agent.stop())
            it.agents.clear()
            it.do(controller.stop())


if __name__ == "__main__":
    main()
