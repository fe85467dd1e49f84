"""Testbed, benchmarks and demo: namespaces, the real daemons, real traces. Nothing imports this package."""
