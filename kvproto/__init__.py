"""Protocol core of kvcast: wire formats, sessions and their simulator. No sockets, clocks, threads or randomness."""
