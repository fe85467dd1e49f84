"""A P4_16 switch that installs with pip: compiler, native runtime and P4Runtime server for v1model and TNA programs."""
