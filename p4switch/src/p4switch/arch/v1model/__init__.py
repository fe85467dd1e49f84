"""v1model, the architecture of bmv2's simple_switch."""
