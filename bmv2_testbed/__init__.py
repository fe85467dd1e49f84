"""Testbed, benchmarks and demo: real networks of namespaces, real daemons, real traces. Nothing imports this package."""
