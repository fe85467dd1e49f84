"""Two engines on two nodes share the KV of a prompt: the first puts its chunks, the second fetches them.

    python examples/share_a_prefix.py /run/node1/agent.sock /run/node2/agent.sock

Each path is the socket of one node's kvcast-agent. Only kvcast-client is needed.
"""

from __future__ import annotations

import random
import sys
import time

from kvclient import ROOT_KEY, AgentClient, ChunkKey, KvIdentity, Where, prefix_keys

CHUNK_TOKENS = 256
CHUNK_BYTES = 1 << 20
PATIENCE_S = 30.0


def computed(key: ChunkKey) -> bytes:
    """Stands for the KV that a model computes: the same bytes for the same prefix, on every node."""
    return random.Random(key).randbytes(CHUNK_BYTES)


def put_all(socket: str, keys: list[ChunkKey]) -> None:
    """Store the chunks on one node, each below the one before it."""
    with AgentClient(socket) as agent:
        parent: ChunkKey = ROOT_KEY
        for key in keys:
            outcome = agent.put(key, parent, computed(key))
            print(f"put {key.hex()[:12]}: {outcome}")
            parent = key


def fetch_all(socket: str, keys: list[ChunkKey]) -> int:
    """Fetch the chunks from another node and compare every byte. Returns the chunks that arrived."""
    with AgentClient(socket) as agent:
        # A fetch of a chunk that no one is known to hold answers at once: give the directory a moment.
        until_s = time.monotonic() + PATIENCE_S
        while Where.NOWHERE in agent.contains(keys) and time.monotonic() < until_s:
            pass
        with agent.fetch(keys, deadline_s=PATIENCE_S) as got:
            for key, view, source in zip(keys, got.views, got.sources, strict=False):
                right = view == computed(key)
                print(f"got {key.hex()[:12]}: {source}, {'every byte right' if right else 'WRONG BYTES'}")
                if not right:
                    return 0
            print(f"outcome: {got.outcome}, {got.count} of {len(keys)} chunks")
            return got.count


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    prompt = list(range(4 * CHUNK_TOKENS))
    keys = prefix_keys(KvIdentity(model="example", chunk_tokens=CHUNK_TOKENS), prompt)
    put_all(sys.argv[1], keys)
    return int(fetch_all(sys.argv[2], keys) != len(keys))


if __name__ == "__main__":
    raise SystemExit(main())
