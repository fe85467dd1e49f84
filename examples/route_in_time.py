"""A router: sends each prompt to the node that has its KV soonest, and refuses at once what no node would have in time.

    python examples/route_in_time.py http://CONTROLLER:9470 --within 0.5 --recompute 2.0 KEY [KEY ...]

It asks once a prompt (`/v1/cost` with `within_s`); what an engine has queued it knows by itself, from its own sends.
"""

import argparse
import json
import time
import urllib.request


class Router:
    def __init__(self, url: str, within_s: float) -> None:
        self.url, self.within_s = url + "/v1/cost", within_s
        self.busy_until_s: dict[str, float] = {}

    def place(self, keys: list[str], recompute_s: float) -> str | None:
        """The node for a prompt of these chunks, whose KV takes so long to compute; None: refuse it."""
        now_s = time.monotonic()
        queue_s = {node: max(0.0, until_s - now_s) for node, until_s in self.busy_until_s.items()}
        asked = {"keys": keys, "recompute_s": recompute_s, "queue_s": queue_s, "within_s": self.within_s}
        with urllib.request.urlopen(self.url, json.dumps(asked).encode(), timeout=1) as reply:
            answer = json.load(reply)
        node: str | None = answer["within"]["send_to"]
        if node is not None:
            self.busy_until_s[node] = now_s + answer["nodes"][node]["seconds"]
        print(f"send it to {node}" if node else f"refuse: {answer['within']['refuse']}")
        return node


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("keys", nargs="+")
    parser.add_argument("--within", type=float, required=True)
    parser.add_argument("--recompute", type=float, required=True)
    args = parser.parse_args()
    Router(args.url, args.within).place(args.keys, args.recompute)
