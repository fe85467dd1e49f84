"""The runtime's shared object as ctypes sees it: structures and function signatures, one to one with the C."""

from __future__ import annotations

import ctypes
import functools
import struct
from ctypes import POINTER, c_char_p, c_int, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from pathlib import Path

from p4switch.build import build_shared_object
from p4switch.errors import SwitchError

INCLUDE_DIR = Path(__file__).parent / "include"
"""The headers that generated programs include."""
_SOURCE_DIR = Path(__file__).parent / "src"

ABI_VERSION = 3
NO_ACTION = 0xFFFFFFFF
NONE = 0xFFFFFFFF
PORTS_MAX = 512
RECIRCULATION_PORTS_MAX = 4
ERROR_BYTES = 1024

OP_HEADER = struct.Struct("<IHHIIIIIIQ2Q4Q6QQQ")
ENTRY_HEADER = struct.Struct("<IIIIQQQQ5Q6Q")
EVENT_HEADER = struct.Struct("<IIQQIIII")
REPLICA = struct.Struct("<II")
WEIGHTED = struct.Struct("<III")
COUNTER_CELL = struct.Struct("<QQ")
METER_CELL = struct.Struct("<5Q")
COLORS_CELL = struct.Struct("<6Q")
MEMORY_RECORD = struct.Struct("<QII")

ACTION_NONE, ACTION_CALL, ACTION_MEMBER, ACTION_GROUP = range(4)
EVENT_DIGEST, EVENT_PACKET_IN, EVENT_IDLE, EVENT_LOG, EVENT_PORT = range(1, 6)


class FieldDesc(ctypes.Structure):
    """struct ps_field_desc"""

    _fields_ = (
        ("name", c_char_p),
        ("id", c_uint32),
        ("width", c_uint32),
        ("offset", c_uint32),
        ("match_kind", c_uint8),
        ("order", c_uint8),
        ("pad", c_uint8 * 2),
    )


class ActionDesc(ctypes.Structure):
    """struct ps_action_desc"""

    _fields_ = (
        ("name", c_char_p),
        ("id", c_uint32),
        ("param_count", c_uint32),
        ("param_bytes", c_uint32),
        ("params", POINTER(FieldDesc)),
    )


class TableDesc(ctypes.Structure):
    """struct ps_table_desc"""

    _fields_ = (
        ("name", c_char_p),
        ("id", c_uint32),
        ("flags", c_uint32),
        ("size", c_uint64),
        ("key_count", c_uint32),
        ("key_bytes", c_uint32),
        ("keys", POINTER(FieldDesc)),
        ("action_count", c_uint32),
        ("default_action", c_uint32),
        ("actions", POINTER(c_uint32)),
        ("default_params", c_void_p),
        ("profile", c_uint32),
        ("const_entry_count", c_uint32),
        ("const_entries", c_void_p),
    )


class ProfileDesc(ctypes.Structure):
    """struct ps_profile_desc"""

    _fields_ = (
        ("name", c_char_p),
        ("id", c_uint32),
        ("is_selector", c_uint32),
        ("size", c_uint64),
        ("action_count", c_uint32),
        ("actions", POINTER(c_uint32)),
    )


class RegisterDesc(ctypes.Structure):
    """struct ps_register_desc"""

    _fields_ = (
        ("name", c_char_p),
        ("id", c_uint32),
        ("width", c_uint32),
        ("count", c_uint64),
        ("cell_bytes", c_uint32),
        ("order", c_uint32),
        ("initial", c_void_p),
    )


class CounterDesc(ctypes.Structure):
    """struct ps_counter_desc, struct ps_meter_desc"""

    _fields_ = (("name", c_char_p), ("id", c_uint32), ("unit", c_uint32), ("count", c_uint64))


class DigestDesc(ctypes.Structure):
    """struct ps_digest_desc"""

    _fields_ = (
        ("name", c_char_p),
        ("id", c_uint32),
        ("field_count", c_uint32),
        ("fields", POINTER(FieldDesc)),
        ("packed_bytes", c_uint32),
        ("pad", c_uint32),
    )


class ProgramDesc(ctypes.Structure):
    """struct ps_program"""

    _fields_ = (
        ("abi_version", c_uint32),
        ("descriptor_bytes", c_uint32),
        ("name", c_char_p),
        ("flags", c_uint32),
        ("architecture", c_uint32),
        ("phv_bytes", c_uint32),
        ("metadata_bytes", c_uint32),
        ("zero_bytes", c_uint32),
        ("max_header_bytes", c_uint32),
        ("scratch_bytes", c_uint32),
        ("functions", c_void_p * 10),
        ("egress_phv_bytes", c_uint32),
        ("egress_zero_bytes", c_uint32),
        ("action_count", c_uint32),
        ("table_count", c_uint32),
        ("profile_count", c_uint32),
        ("register_count", c_uint32),
        ("counter_count", c_uint32),
        ("meter_count", c_uint32),
        ("digest_count", c_uint32),
        ("pad", c_uint32),
        ("actions", POINTER(ActionDesc)),
        ("tables", POINTER(TableDesc)),
        ("profiles", POINTER(ProfileDesc)),
        ("registers", POINTER(RegisterDesc)),
        ("counters", POINTER(CounterDesc)),
        ("meters", POINTER(CounterDesc)),
        ("digests", POINTER(DigestDesc)),
        ("errors", POINTER(c_char_p)),
    )


class SwitchConfigStruct(ctypes.Structure):
    """struct ps_switch_config"""

    _fields_ = (
        ("cpu_port", c_uint32),
        ("drop_port", c_uint32),
        ("seed", c_uint64),
        ("virtual_clock", c_uint32),
        ("trace", c_uint32),
        ("recirculation_ports", c_uint32 * RECIRCULATION_PORTS_MAX),
        ("recirculation_rate_bits", c_uint64),
        ("recirculation_queue_bytes", c_uint64),
    )


class FaultsStruct(ctypes.Structure):
    """struct ps_faults"""

    _fields_ = (
        ("seed", c_uint64),
        ("loss", c_uint32),
        ("duplicate", c_uint32),
        ("reorder", c_uint32),
        ("corrupt", c_uint32),
        ("delay_us", c_uint32),
        ("jitter_us", c_uint32),
        ("reorder_gap", c_uint32),
        ("enabled", c_uint32),
    )


PORT_STATS_WORDS = 18
SWITCH_STATS_WORDS = 24

_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "ps_switch_new": (c_void_p, (POINTER(SwitchConfigStruct),)),
    "ps_switch_free": (None, (c_void_p,)),
    "ps_start": (c_int, (c_void_p,)),
    "ps_stop": (None, (c_void_p,)),
    "ps_step": (c_int, (c_void_p,)),
    "ps_advance": (c_int, (c_void_p, c_uint64)),
    "ps_now_us": (c_uint64, (c_void_p,)),
    "ps_inject": (c_int, (c_void_p, c_uint32, c_char_p, c_uint64)),
    "ps_bench": (c_uint64, (c_void_p, c_uint32, c_char_p, c_uint64, c_uint64)),
    "ps_collect": (c_int64, (c_void_p, c_uint32, c_void_p, c_uint64)),
    "ps_stats_read": (None, (c_void_p, POINTER(c_uint64))),
    "ps_set_exclusion": (c_int, (c_void_p, c_uint32, POINTER(c_uint64))),
    "ps_set_trace": (None, (c_void_p, c_int)),
    "ps_commit": (None, (c_void_p, c_void_p)),
    "ps_add_interface": (c_int, (c_void_p, c_uint32, c_char_p, c_char_p, c_uint64)),
    "ps_add_unix": (c_int, (c_void_p, c_uint32, c_char_p, c_char_p, c_char_p, c_uint64)),
    "ps_add_udp": (c_int, (c_void_p, c_uint32, c_char_p, POINTER(c_uint16), c_char_p, c_uint16, c_char_p, c_uint64)),
    "ps_add_memory": (c_int, (c_void_p, c_uint32, c_int, c_char_p, c_uint64)),
    "ps_remove_port": (c_int, (c_void_p, c_uint32)),
    "ps_set_faults": (c_int, (c_void_p, c_uint32, c_int, POINTER(FaultsStruct))),
    "ps_set_queue": (c_int, (c_void_p, c_uint32, c_uint32, c_uint64, c_uint32)),
    "ps_set_shape": (c_int, (c_void_p, c_uint32, c_uint64, c_uint64, c_uint64)),
    "ps_set_pcap": (c_int, (c_void_p, c_uint32, c_int, c_char_p)),
    "ps_port_stats_read": (c_int, (c_void_p, c_uint32, POINTER(c_uint64))),
    "ps_events_wait": (c_int64, (c_void_p, c_void_p, c_uint64, c_int64)),
    "ps_events_close": (None, (c_void_p,)),
    "ps_pipeline_new": (c_void_p, (c_void_p, c_void_p, POINTER(c_char_p))),
    "ps_pipeline_free": (None, (c_void_p,)),
    "ps_pipeline_serial": (c_uint64, (c_void_p,)),
    "ps_batch_apply": (c_int, (c_void_p, c_char_p, c_uint64, c_uint64, POINTER(c_uint32), c_int)),
    "ps_table_record_bytes": (c_uint32, (c_void_p, c_uint32)),
    "ps_table_count": (c_uint32, (c_void_p, c_uint32)),
    "ps_table_read": (c_uint32, (c_void_p, c_uint32, POINTER(c_uint32), c_uint32, c_void_p)),
    "ps_table_find": (c_uint32, (c_void_p, c_uint32, c_char_p)),
    "ps_counters_read": (c_int, (c_void_p, c_uint32, c_uint64, c_uint64, c_void_p)),
    "ps_meters_read": (c_int, (c_void_p, c_uint32, c_uint64, c_uint64, c_void_p)),
    "ps_colors_read": (c_int, (c_void_p, c_uint32, c_uint64, c_uint64, c_void_p)),
    "ps_registers_read": (c_int, (c_void_p, c_uint32, c_uint64, c_uint64, c_void_p)),
}


@functools.cache
def runtime() -> ctypes.CDLL:
    """The runtime, built on first use."""
    sources = sorted(_SOURCE_DIR.glob("*.c"))
    built = build_shared_object("runtime", sources, include_dirs=(INCLUDE_DIR, _SOURCE_DIR))
    try:
        library = ctypes.CDLL(str(built))
    except OSError as error:
        raise SwitchError(
            f"{built} does not load ({error}): set XDG_CACHE_HOME to a folder that is not mounted noexec"
        ) from error
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library
