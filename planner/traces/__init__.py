"""Request traces: where they are found, how they are read. Knows nothing of kvcast; others use it."""

from planner.traces.catalog import NAMES, TraceFile, find_trace, open_trace
from planner.traces.files import FORMATS, read_trace
from planner.traces.request import (
    BLOCK_TOKENS,
    TICK_MS,
    TraceError,
    TraceRequest,
    dequantise,
    is_quantised,
    parse_lengths,
    parse_trace,
)

__all__ = [
    "BLOCK_TOKENS",
    "FORMATS",
    "NAMES",
    "TICK_MS",
    "TraceError",
    "TraceFile",
    "TraceRequest",
    "dequantise",
    "find_trace",
    "is_quantised",
    "open_trace",
    "parse_lengths",
    "parse_trace",
    "read_trace",
]
