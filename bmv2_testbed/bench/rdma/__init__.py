"""The RDMA transport compared with minimal programs on the same soft-RoCE ports, and the cost of its own code."""
