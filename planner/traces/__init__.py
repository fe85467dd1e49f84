"""Request traces: where they are found, how they are read. Knows nothing of kvcast; others use it."""

from planner.traces.catalog import NAMES, TraceFile, find_trace, open_trace
from planner.traces.files import FORMATS, read_trace
from planner.traces.meaning import Trace, understood
from planner.traces.records import TimeUnit, TraceError, csv_records, json_records
from planner.traces.request import BLOCK_TOKENS, TICK_MS, TraceRequest, dequantise, is_quantised

__all__ = [
    "BLOCK_TOKENS",
    "FORMATS",
    "NAMES",
    "TICK_MS",
    "TimeUnit",
    "Trace",
    "TraceError",
    "TraceFile",
    "TraceRequest",
    "csv_records",
    "dequantise",
    "find_trace",
    "is_quantised",
    "json_records",
    "open_trace",
    "read_trace",
    "understood",
]
