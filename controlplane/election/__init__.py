"""Which of several controllers leads: one contract; a lease in etcd or Kubernetes, the switch, or nobody."""
