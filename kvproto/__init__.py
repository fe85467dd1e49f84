"""The protocol core: wire formats, sessions and state machines without any I/O."""
