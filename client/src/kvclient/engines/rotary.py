"""What turns a model's keys by their positions: tables and settings of its rotary modules, as they are after loading.

A table may follow from more than the model's files: LongRoPE chooses its factors by the longest context that an engine
was started for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch

from kvclient.engines.checksum import tensors_checksum

NAMES: Final = ("Rotary", "Rope", "RoPE")
"""In the names of classes that turn keys by their positions."""
SETTINGS: Final = (bool, float, int, str, list, tuple)
UNTOLD: Final = frozenset({"training", "do_not_compile"})
"""Flags of modules that say how something is computed, not what."""


def rotary_digest(models: Iterable[tuple[str, torch.nn.Module]]) -> str:
    """32 hex digits for the tables and settings of all models, by their roles."""
    found = list(models)
    tensors = tensors_checksum((f"{role}.{name}", one) for role, model in found for name, one in rotary_tensors(model))
    settings = [[role, name, told] for role, model in found for name, told in rotary_settings(model)]
    canonical = json.dumps([tensors, settings], sort_keys=True, default=str)
    return hashlib.blake2b(canonical.encode(), digest_size=16, person=b"kvcast-rotary").hexdigest()


def is_rotary(module: torch.nn.Module) -> bool:
    """Whether a module turns keys by their positions."""
    return any(part in type(module).__name__ for part in NAMES)


def rotary_tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Buffers of rotary modules, and tensors that are plain attributes of them."""
    for name, module in model.named_modules():
        if is_rotary(module):
            plain = ((key, value) for key, value in vars(module).items() if isinstance(value, torch.Tensor))
            yield from ((f"{name}.{key}", value) for key, value in (*module.named_buffers(recurse=False), *plain))


def rotary_settings(model: torch.nn.Module) -> Iterator[tuple[str, dict[str, Any]]]:
    """All plain settings of rotary modules: one of them may choose among the factors of a table."""
    for name, module in model.named_modules():
        if is_rotary(module):
            yield name, settings_of(module, SETTINGS)


def settings_of(module: torch.nn.Module, kinds: tuple[type, ...]) -> dict[str, Any]:
    """The settings of these kinds that say what a module computes."""
    found = {key: value for key, value in vars(module).items() if isinstance(value, kinds)}
    return {key: value for key, value in found.items() if not key.startswith("_") and key not in UNTOLD}
