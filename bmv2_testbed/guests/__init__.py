"""Virtual machines with soft-RoCE, in software emulation and without root: where the RDMA transport is tested."""
