"""FlashInfer's paged KV caches on the pool, and prefixes that its cascade attention may read once."""
