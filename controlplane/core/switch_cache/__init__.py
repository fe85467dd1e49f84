"""The cache of chunks in the switch: who comes in, at which slots, filled by whom, and what goes out. Pure."""
