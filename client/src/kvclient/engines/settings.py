"""The settings of a connector, out of the engine's configuration. Unknown keys are refused."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from kvchunk.ids import SECRET_BYTES_MIN
from kvchunk.kv_layout import EXACT, LOSSY

SOCKET_VARIABLE = "KVCAST_AGENT_SOCKET"
SOCKET_DEFAULT = "/run/kvcast/agent.sock"
PRODUCER, CONSUMER, BOTH = "kv_producer", "kv_consumer", "kv_both"
"""Roles of an engine, as vLLM names them (`kv_role`)."""
SECRET_FILE_VARIABLE = "KVCAST_TENANT_SECRET_FILE"
SECRET_BYTES_MAX = 4096


class SettingsError(ValueError):
    """One line that names the setting and the remedy."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`kv_connector_extra_config`, with the defaults."""

    socket: str = SOCKET_DEFAULT
    chunk_tokens: int = 0
    """0: chosen by the size of the model's KV (`engines.core.chunk_sizes`)."""
    kv_head_groups: int = 0
    """The largest tensor-parallel size among the engines that share (`engines.core.head_groups`); 0: this engine's."""
    load: str = "auto"
    save: str = "all"
    gate: str = "auto"
    prefill_tokens_per_s: float = 0.0
    load_tokens_min: int = 1
    load_deadline_s: float = 10.0
    lookup_timeout_s: float = 0.25
    lookup_wait_s: float = 0.002
    answer_timeout_s: float = 5.0
    threads: int = 4
    save_blocks_share: float = 0.25
    expected_s: float = 30.0
    expected_s_max: float = 60.0
    warm_bytes: int = 0
    warm_nodes: int = 0
    warm_wait_s: float = 2.0
    weights_digest: str = ""
    weights_version_file: str = ""
    tenant_secret_file: str = ""
    kv_form: str = EXACT
    cache_layout: str = ""
    """Empty: the engine's own choice."""
    events: bool = True
    events_medium: str = "EXTERNAL"
    events_sweep_s: float = 10.0
    events_chunks_max: int = 16384


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Of an engine that uses the pool as a store of named chunks (SGLang, LMCache, UCM), with the defaults."""

    socket: str = SOCKET_DEFAULT
    load_deadline_s: float = 10.0
    answer_timeout_s: float = 5.0
    lock_s: float = 60.0
    weights_digest: str = ""
    tenant_secret_file: str = ""


LOADS = ("auto", "async", "layerwise", "off")
SAVES = ("all", "prompt", "off")
GATES = ("auto", "off")
KV_FORMS = (EXACT, LOSSY)
"""Whether the pool may round KV where it stores it in fewer bytes."""
CACHE_LAYOUTS = ("", "LBHNC", "LBNHC", "BLHNC", "BLNHC", "LHBNC", "BHLNC")
"""vLLM's names: layers, blocks, heads, states (tokens), content, the outermost first."""
KVCAST_MEDIA = "kvcast"
"""Events name the media `pool` and `switch`, and call both remote."""
MEDIA = ("EXTERNAL", "STORAGE", "CPU", KVCAST_MEDIA)
"""Media that events may name: those that Dynamo and llm-d know, or our own."""

_CHOICES = {
    "kv_form": KV_FORMS,
    "cache_layout": CACHE_LAYOUTS,
    "load": LOADS,
    "save": SAVES,
    "gate": GATES,
    "events_medium": MEDIA,
}
_BOUNDS: dict[str, tuple[float, float]] = {
    "chunk_tokens": (1, 65536),
    "kv_head_groups": (0, 1024),
    "prefill_tokens_per_s": (0, 1e12),
    "load_tokens_min": (1, 1 << 31),
    "load_deadline_s": (0.001, 600),
    "lookup_timeout_s": (0.001, 600),
    "lookup_wait_s": (0, 1),
    "answer_timeout_s": (0.01, 600),
    "lock_s": (0.1, 600),
    "threads": (1, 64),
    "save_blocks_share": (0.01, 0.9),
    "expected_s": (0, 600),
    "expected_s_max": (0, 600),
    "warm_bytes": (0, 1 << 50),
    "warm_nodes": (0, 65535),
    "warm_wait_s": (0, 600),
    "events_sweep_s": (0.1, 86400),
    "events_chunks_max": (1, 1 << 20),
}
_NAMED_OTHERWISE = {"kv_connector_module_path"}
"""What the engine itself may leave among the extra settings."""


ROLE_DEFAULTS: dict[str, dict[str, Any]] = {
    PRODUCER: {"load": "off", "save": "prompt", "save_blocks_share": 0.9},
    CONSUMER: {"save": "off"},
    BOTH: {},
}
"""What a role changes about the defaults. A producer is there to compute prompts and to hand them on."""


def parse_settings(extra: Mapping[str, Any], environ: Mapping[str, str] = os.environ, *, role: str = BOTH) -> Settings:
    """Check what the engine was configured with; `role`: its `kv_role`. Raises SettingsError naming the setting."""
    return Settings(**(ROLE_DEFAULTS[role] | _chosen(Settings, extra, environ)))


def parse_store_settings(extra: Any, environ: Mapping[str, str] = os.environ) -> StoreSettings:
    """As `parse_settings`, for a store. `extra` is parsed JSON of any type."""
    if not isinstance(extra, Mapping):
        raise SettingsError(f"the settings of kvcast are {extra!r}; they must be an object of names and values")
    return StoreSettings(**_chosen(StoreSettings, extra, environ))


def _chosen(
    kind: type[Settings] | type[StoreSettings], extra: Mapping[str, Any], environ: Mapping[str, str]
) -> dict[str, Any]:
    known = {field.name: field.type for field in fields(kind)}
    chosen: dict[str, Any] = {
        "socket": environ.get(SOCKET_VARIABLE, SOCKET_DEFAULT),
        "tenant_secret_file": environ.get(SECRET_FILE_VARIABLE, ""),
    }
    for name, value in extra.items():
        if name in _NAMED_OTHERWISE:
            continue
        if name not in known:
            raise SettingsError(
                f"unknown setting {name!r} of the kvcast connector; known are {', '.join(sorted(known))}"
            )
        chosen[name] = _checked(name, str(known[name]), value)
    return chosen


def tenant_secret(path: str) -> bytes:
    """The secret in a file, without the line's end; no path, no secret. Raises SettingsError, which never shows it."""
    if not path:
        return b""
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            secret = file.read(SECRET_BYTES_MAX + 1).rstrip(b"\r\n")
    except OSError as error:
        raise SettingsError(f"tenant_secret_file: cannot read {path}: {error.strerror}") from error
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise SettingsError(f"tenant_secret_file: every user may read or write {path}; chmod o-rw {path}")
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise SettingsError(
            f"tenant_secret_file: {path} has {len(secret)} bytes, not {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX};"
            " make one with: openssl rand -hex 32"
        )
    return secret


def _checked(name: str, kind: str, value: Any) -> Any:
    if kind == "bool":
        if not isinstance(value, bool):
            raise SettingsError(f"{name} is {value!r}; it must be true or false")
        return value
    if kind == "str":
        if not isinstance(value, str) or (name == "socket" and not value):
            raise SettingsError(f"{name} is {value!r}; it must be text")
        if name in _CHOICES and value not in _CHOICES[name]:
            raise SettingsError(f"{name} is {value!r}; it must be one of {', '.join(_CHOICES[name])}")
        return value
    if isinstance(value, bool) or not isinstance(value, int if kind == "int" else (int, float)):
        raise SettingsError(f"{name} is {value!r}; it must be a number")
    least, most = _BOUNDS[name]
    if not least <= value <= most:
        raise SettingsError(f"{name} is {value!r}; it must be from {least:g} to {most:g}")
    return value
