"""`kvcast-agent`, and `python -m hostagent`: prepares gRPC before anything imports it, then runs the daemon."""

from __future__ import annotations

from collections.abc import Sequence

from kvdaemon.imports import prepare_grpc, without_collections


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent; returns the exit status (see `run_daemon`)."""
    prepare_grpc()
    with without_collections():
        from hostagent.daemon import main as run
    return run(argv)


if __name__ == "__main__":
    raise SystemExit(main())
