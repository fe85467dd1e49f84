"""Messages of the control channel, generated from `control.proto` by `make rpc`; nothing here is written by hand."""
