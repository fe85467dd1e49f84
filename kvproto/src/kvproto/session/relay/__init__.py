"""Readers that pass chunks on while these arrive: what a node passes on, what it gathers, and from whom."""
