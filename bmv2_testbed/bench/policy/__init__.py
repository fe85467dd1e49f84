"""What cache policies make of a trace: token-weighted prefix hit by policy and size of the pool."""
