"""The RDMA transport beside minimal programs on the same soft-RoCE ports, and what its own code costs."""
