"""The local API: a UNIX socket between engines and the agent. `messages` is the protocol, `server` the agent's end."""
