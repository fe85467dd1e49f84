"""Messages of p4/config/v1/p4types.proto."""

from p4switch.proto.pool import exported_names

globals().update(exported_names("p4/config/v1/p4types.proto"))
