"""The agent's side of the control channel: the stream, its messages, the reports on it, and the tasks it brings."""
