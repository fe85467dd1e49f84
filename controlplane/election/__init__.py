"""Which of several controllers leads: one contract, and who decides: a lease in etcd or Kubernetes, the switch, nobody."""
