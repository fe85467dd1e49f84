"""All that an agent decides, without its daemon: see `hostagent.core.core`."""
