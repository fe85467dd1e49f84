"""The lab's command line: `kvcast demo`, `bench`, `testbed` and `plan`, and what only they need."""
