"""Puts or fetches one prefix at an agent: `work put|fetch SOCKET MODEL [CHUNKS BYTES]`; a fetch prints chunks, outcome
and seconds."""

from __future__ import annotations

import sys
import time

from kvchunk.ids import ChunkKey, KvIdentity, prefix_keys
from kvclient import AgentClient

DEADLINE_S = 30.0


def main(what: str, socket: str, model: str, chunks: str = "4", chunk_bytes: str = "65536") -> None:
    keys = prefix_keys(KvIdentity(model=model), range(256 * int(chunks)))
    repeats = int(chunk_bytes) // len(keys[0])
    with AgentClient(socket) as agent:
        if what == "put":
            parent: ChunkKey | None = None
            for key in keys:
                agent.put(key, parent, key * repeats)
                parent = key
            return
        began_s = time.monotonic()
        with agent.fetch(keys, deadline_s=DEADLINE_S) as got:
            right = [bytes(view) == key * repeats for key, view in zip(keys, got.views, strict=False)]
            assert all(right), "wrong bytes"
            print(got.count, got.outcome.name, time.monotonic() - began_s)


if __name__ == "__main__":
    main(*sys.argv[1:])
