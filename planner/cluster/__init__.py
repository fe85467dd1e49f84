"""A simulated cluster: the daemons' own pure classes on a virtual clock, engines as queues, links as fluids."""
