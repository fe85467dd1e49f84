"""An engine's side of the pool: the client of the node's agent, and the connectors of engines (`kvclient.engines`).

What an engine writer needs is importable from here: the client and its outcomes and errors, and how chunks are named.
`kvclient.asynchronous` has the client for an event loop, `kvclient.polled_client` the one for a scheduler that polls.
"""

from kvchunk import __version__
from kvchunk.ids import ROOT_KEY, ChunkKey, KvIdentity, chunk_key, prefix_keys
from kvchunk.sources import ChunkSource
from kvclient.attach import AgentUnavailableError, LeaseLostError
from kvclient.client import (
    AgentClient,
    AgentError,
    ChunkToPut,
    Fetched,
    FetchStream,
    PoolFullError,
    PutOutcome,
    Reservation,
)
from kvclient.fetched import Found
from kvclient.messages import Status, Where

__all__ = [
    "ROOT_KEY",
    "AgentClient",
    "AgentError",
    "AgentUnavailableError",
    "ChunkKey",
    "ChunkSource",
    "ChunkToPut",
    "FetchStream",
    "Fetched",
    "Found",
    "KvIdentity",
    "LeaseLostError",
    "PoolFullError",
    "PutOutcome",
    "Reservation",
    "Status",
    "Where",
    "__version__",
    "chunk_key",
    "prefix_keys",
]
