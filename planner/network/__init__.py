"""The network of the plan: links shared fairly, reads and casts over them. Fluid: bytes flow, packets do not."""
