"""What a pool decides: values of chunks and which to evict, the gate of fetches, what moves between tiers. Pure."""
