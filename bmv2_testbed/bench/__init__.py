"""Benchmarks: the same transfer by kvcast and by its peers, on the same links in the same run."""
