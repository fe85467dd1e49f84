"""The demo's workloads on a testbed: engines that compute by waiting, and fetch through their agents."""
