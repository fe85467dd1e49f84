"""Messages of etcd's own API, generated from `etcd.proto` by tools/generate_rpc.py."""
