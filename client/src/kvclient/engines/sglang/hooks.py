"""Sees what may change an engine's weights, by hooks of SGLang's plugin framework.

SGLang calls `register` at the start of each of its processes (the entry point `sglang.srt.plugins`). Only the process
of a scheduler has weights.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from kvclient.engines.sglang.engine_weights import ENGINE_WEIGHTS

SCHEDULER: Final = "sglang.srt.managers.scheduler"
UPDATER: Final = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
MAY_CHANGE_WEIGHTS: Final = (
    "begin_weight_update",
    "end_weight_update",
    "release_memory_occupation",
    "resume_memory_occupation",
    "update_weights_from_disk",
    "update_weights_from_distributed",
    "update_weights_from_ipc",
    "update_weights_from_tensor",
)
"""What else is called by name (`collective_rpc`) may change them, too."""
STAGES: Final = (
    "the weights may have changed, and kvcast cannot ask the other stages of the pipeline: restart the engine to share "
    "KV again"
)


def register() -> None:
    """Idempotent: SGLang applies hooks once."""
    if SCHEDULER not in sys.modules:
        return
    for name in MAY_CHANGE_WEIGHTS:
        HookRegistry.register(f"{UPDATER}.{name}", _around_update, HookType.AROUND)
    HookRegistry.register(f"{SCHEDULER}.Scheduler.init_weight_updater", _after_start, HookType.AFTER)
    HookRegistry.register(f"{SCHEDULER}.Scheduler.handle_rpc_request", _around_call, HookType.AROUND)
    HookRegistry.register(f"{SCHEDULER}.Scheduler.flush_cache", _after_flush, HookType.AFTER)


def _after_start(result: Any, scheduler: Any) -> Any:
    updater = scheduler.weight_updater
    ENGINE_WEIGHTS.engine_started(lambda: _models(updater), lambda own: _gathered(updater, own))
    return result


def _after_flush(result: Any, scheduler: Any, *arguments: Any, **more: Any) -> Any:
    if result:
        ENGINE_WEIGHTS.cache_emptied(scheduler.forward_ct)
    return result


def _around_update(original: Callable[..., Any], updater: Any, *arguments: Any, **more: Any) -> Any:
    ENGINE_WEIGHTS.weights_may_change()
    is_done = False
    try:
        result = original(updater, *arguments, **more)
        is_done = bool(getattr(result, "success", True))
        return result
    finally:
        if is_done:
            ENGINE_WEIGHTS.part_loaded(_version_in(arguments))
        else:
            ENGINE_WEIGHTS.part_failed()
        _settle(updater)


def _version_in(arguments: Sequence[Any]) -> str:
    """The caller's own name of the weights that an update brings; requests of other kinds have none."""
    return str(getattr(arguments[0], "weight_version", None) or "") if arguments else ""


def _around_call(original: Callable[..., Any], scheduler: Any, *arguments: Any, **more: Any) -> Any:
    ENGINE_WEIGHTS.weights_may_change()
    try:
        return original(scheduler, *arguments, **more)
    finally:
        _settle(scheduler.weight_updater)


def _settle(updater: Any) -> None:
    """An update between its beginning and its end, and weights that are out of memory, are not settled."""
    if updater._session is not None or "weights" in updater.offload_tags:
        return
    if torch.distributed.get_world_size() > torch.distributed.get_world_size(group=updater.tp_cpu_group):
        ENGINE_WEIGHTS.refuse(STAGES)
        return
    ENGINE_WEIGHTS.weights_settled(updater.scheduler.forward_ct)


def _models(updater: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    yield from ((role, runner.model) for role, runner in updater._select_runners())


def _gathered(updater: Any, own: str) -> Sequence[str]:
    count = torch.distributed.get_world_size(group=updater.tp_cpu_group)
    if count == 1:
        return [own]
    found: list[Any] = [None] * count
    torch.distributed.all_gather_object(found, own, group=updater.tp_cpu_group)
    return found
