"""Messages of p4/v1/p4data.proto."""

from p4switch.proto.pool import exported_names

globals().update(exported_names("p4/v1/p4data.proto"))
