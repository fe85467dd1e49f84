"""Cold stores below DRAM and disk: what an operator says of one, its adapters, and the shell that uses it."""
