"""Makes the connector known to vLLM by its name: `"kv_connector": "KvcastConnector"` is enough.

vLLM calls `register` at its start, in each of its processes (the entry point `vllm.general_plugins`).
"""

from __future__ import annotations

import contextlib

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory


def register() -> None:
    """Idempotent."""
    with contextlib.suppress(ValueError):  # it is known already
        KVConnectorFactory.register_connector("KvcastConnector", "kvclient.engines.vllm.connector", "KvcastConnector")
