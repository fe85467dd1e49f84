"""How bytes get from node to node. `base` states the contract; one contract suite runs on every implementation."""
