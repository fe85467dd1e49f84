"""The networks that a testbed runs on."""
