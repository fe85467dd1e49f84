"""A cluster as it ships: the cores of controllers and agents, the election, streams that break, and engines."""
