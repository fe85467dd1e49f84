"""What a copy of a chunk is worth, and what it costs to get one from where. Pure."""
