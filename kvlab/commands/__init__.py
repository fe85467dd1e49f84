"""One module a command: `add_arguments(parser)` declares it, `run(args) -> int` does it. `kvcast.cli` imports them."""
