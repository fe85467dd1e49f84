"""The RDMA transport: UD multicast casts and one-sided RC reads, over libibverbs. See docs/explanation/rdma.md."""
