"""A controller under the load of many agents that speak the protocol and hold nothing."""
