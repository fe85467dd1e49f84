"""A node's state machines: the reader (one per node, any number of chunks) and the holder (the serving side)."""
