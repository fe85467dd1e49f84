"""Inference engines on the pool. `core` decides and is pure; the rest moves bytes and speaks to engine and agent."""
