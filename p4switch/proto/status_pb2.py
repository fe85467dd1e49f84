"""Messages of google/rpc/status.proto."""

from p4switch.proto.pool import exported_names

globals().update(exported_names("google/rpc/status.proto"))
