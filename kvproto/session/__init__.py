"""A node's state machines: the reader (one a node, any number of fetches) and the holder (the serving side)."""
