"""What runs behind the names of bmv2's tools: `simple_switch_grpc`, `simple_switch`, `p4c-bm2-ss`, `p4c` and
`simple_switch_CLI`. They take those tools' arguments and do by P4Runtime what those do by Thrift and JSON.
"""
