"""All that the controller decides, without its daemon: see `controlplane.core.core`."""
