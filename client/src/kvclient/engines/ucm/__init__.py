"""UCM (Unified Cache Manager) on the pool: see docs/how-to/ucm.md."""
