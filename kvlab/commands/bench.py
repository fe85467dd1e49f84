"""`kvcast bench`: figures of kvcast and of its peers, measured side by side in one run."""

from __future__ import annotations

import argparse
import importlib

from kvcast.arguments import Command, add_choice

BENCHMARKS = {
    "workloads": "where a pool pays and where not: five workloads, with a GPU a node, in all modes",
    "plan-check": "what the planner says of these workloads, beside what the testbed measures",
    "incast": "N nodes fetch the same prefix from one holder",
    "fetch": "one reader alone on links of full speed",
    "datapath": "what a cast segment costs at holder and readers, compared with a pair of C programs",
    "protocol": "the protocol in the simulator: any rate, quick, slow or mixed hosts",
    "switch": "p4switch alone: kvcast.p4, tables, and a bare forwarding loop to compare with",
    "controller": "what a directory of many agents and chunks costs its controller",
    "policy": "hit ratios of cache policies on a trace",
    "cold": "the agent's cold store on a file system, Redis and Mooncake, compared with native clients",
    "codec": "KV in fewer bytes: ratio, speed of a core, and what a small model makes of it",
    "layout": "an engine's pages in and out of chunks, by their layout, beside a plain copy",
    "rdma": "the RDMA transport compared with minimal programs, in a guest with soft-RoCE",
    "ttft": "time to first token of real engines by where a prompt's KV comes from",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the benchmarks: each is a module bench_NAME beside this one."""
    add_choice(parser, "benchmark", BENCHMARKS, lambda name: _load(name).add_arguments)


def run(args: argparse.Namespace) -> int:
    """Run one benchmark; 1 if a byte was wrong or missing."""
    return _load(args.benchmark).run(args)


def _load(name: str) -> Command:
    module: Command = importlib.import_module(f"kvlab.commands.bench_{name.replace('-', '_')}")
    return module
