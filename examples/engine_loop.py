"""What an inference engine does for every request: fetch the KV of the prompt's prefix, compute the rest, store it.

    python examples/engine_loop.py /run/kvcast/agent.sock

Three requests share a system prompt; the third continues the conversation of the first. Only kvcast-client is needed.
"""

from __future__ import annotations

import random
import sys

from kvclient import ROOT_KEY, AgentClient, ChunkKey, KvIdentity, PoolFullError, prefix_keys

CHUNK_TOKENS = 16
CHUNK_BYTES = 256 << 10
PREFILL_S_PER_CHUNK = 0.5
"""What computing one chunk would take; the agent does not fetch what is quicker to compute."""
IDENTITY = KvIdentity(model="example-7b", dtype="bfloat16", chunk_tokens=CHUNK_TOKENS, extra="engine_loop.py")
"""Everything besides the tokens that changes the bytes of the KV."""


def serve(agent: AgentClient, prompt: list[int]) -> tuple[int, int]:
    """One request; returns the chunks that the pool had and those that were computed."""
    keys = prefix_keys(IDENTITY, prompt)
    with agent.fetch_stream(keys, deadline_s=0.5, recompute_s=PREFILL_S_PER_CHUNK * len(keys)) as got:
        for view in got:  # each as soon as it is whole, while those behind it are still on their way
            load_into_gpu(view)
        hits = got.count
    for position in range(hits, len(keys)):
        store(agent, keys[position], keys[position - 1] if position else ROOT_KEY)
    return hits, len(keys) - hits


def load_into_gpu(view: memoryview) -> None:
    """A real engine copies from this shared memory to its device; the bytes were checked when they arrived."""
    assert len(view) == CHUNK_BYTES


def store(agent: AgentClient, key: ChunkKey, parent: ChunkKey) -> None:
    """Compute a chunk into this client's write region, from which the agent copies it into the pool at the commit.

    A full pool costs this chunk's sharing, nothing else.
    """
    try:
        slot = agent.reserve(key, parent, CHUNK_BYTES)
    except PoolFullError:
        return
    if slot is None:  # another engine has stored it meanwhile
        return
    with slot:
        slot.view[:] = random.Random(key).randbytes(CHUNK_BYTES)
        slot.commit()


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    system = list(range(1000, 1000 + 4 * CHUNK_TOKENS))
    first = system + list(range(2 * CHUNK_TOKENS))
    prompts = {
        "a first question": first,
        "another user's question": system + list(range(5000, 5000 + CHUNK_TOKENS)),
        "the first user goes on": first + list(range(7000, 7000 + 2 * CHUNK_TOKENS)),
    }
    with AgentClient(sys.argv[1]) as agent:
        for title, prompt in prompts.items():
            hits, computed = serve(agent, prompt)
            print(f"{title}: {hits} chunks from the pool, {computed} computed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
