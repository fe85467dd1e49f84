"""The model in a worker's memory: what names its KV beside the files that it was loaded from, and whether its weights
may have changed since.

vLLM tells a connector of neither. The worker that registers its cache is among the connector's callers, and all that
changes weights goes through methods of it or of its model, or is told by a reset (`scheduler.py`).
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.utils.import_utils import resolve_obj_by_qualname

from kvclient.engines.checksum import tensors_checksum
from kvclient.engines.rotary import SETTINGS, is_rotary, rotary_tensors, settings_of

CHANGE_WEIGHTS: Final = (
    "apply_model",
    "checkpoint_restore",
    "discard",
    "elastic_ep_execute",
    "finish_weight_update",
    "load_model",
    "reload_weights",
    "reset_weights",
    "sleep",
    "start_draft_weight_update",
    "start_weight_update",
    "update_config",
    "update_weights",
    "wake_up",
)
"""Methods of workers after which parameters may have other values; those of a worker extension, too."""
NO_MODEL: Final = ("torch.", "vllm.lora.", "vllm.model_executor.layers.")
"""Modules of classes that say how something is computed, such as kernels and the places of experts. The rest is code of
models, whose switches say what is computed."""
EXPERTS: Final = "expert"
"""In the names of buffers that say which worker has which experts."""
ATTENTION_FLAGS: Final = ("attn_type", "sliding_window", "kv_sharing_target_layer_name", "kv_cache_dtype")
IMPLEMENTATION_FLAGS: Final = ("scale", "sliding_window", "logits_soft_cap", "attn_type", "alibi_slopes")


class WorkersModel:
    """The model of one worker, and the draft's where there is one."""

    def __init__(
        self,
        worker: Any,
        vllm_config: Any,
        sleeps: Callable[[], None] = lambda: None,
        wakes: Callable[[], None] = lambda: None,
    ) -> None:
        """`worker`: vLLM's, which has loaded its model. From now on its calls that may change weights are noticed.
        `sleeps`, `wakes`: called before the cache's memory goes, and when it is there again."""
        self._sleeps, self._wakes = sleeps, wakes
        self._worker = worker
        self._vllm_config = vllm_config
        self.weights_touched = False
        """A call that may change weights was made since the last checksum."""
        extension = vllm_config.parallel_config.worker_extension_cls
        names = set(CHANGE_WEIGHTS)
        if extension:
            names |= {name for name in dir(resolve_obj_by_qualname(extension)) if not name.startswith("_")}
        for name in names:
            self._notice(worker, name)
        for _, model in self._models():
            self._notice(model, "load_weights")

    def _notice(self, owner: Any, name: str) -> None:
        method = getattr(owner, name, None)
        if not callable(method):
            return

        @functools.wraps(method)
        def noticed(*arguments: Any, **more: Any) -> Any:
            self.weights_touched = True
            if name == "sleep":
                self._sleeps()
            result = method(*arguments, **more)
            tags = more.get("tags", arguments[0] if arguments else None)
            if name == "wake_up" and (tags is None or "kv_cache" in tags):
                self._wakes()
            return result

        setattr(owner, name, noticed)

    def _models(self) -> Iterator[tuple[str, torch.nn.Module]]:
        yield "", self._worker.get_model()
        draft = getattr(self._worker, "get_draft_model", lambda: None)()
        if draft is not None:
            yield "draft.", draft

    def take_checksum(self) -> str:
        """Of all parameters and buffers, as they are now."""
        self.weights_touched = False
        return tensors_checksum(
            (prefix + name, tensor)
            for prefix, model in self._models()
            for tensors in (model.named_parameters(), model.named_buffers())
            for name, tensor in tensors
        )

    def digest(self) -> str:
        """Of all buffers, whole, and of the flags that decide what the model computes."""
        buffers = tensors_checksum(
            (prefix + name, tensor) for prefix, model in self._models() for name, tensor in _tables(model)
        )
        flags = [[prefix + name, found] for prefix, model in self._models() for name, found in _flags(model)]
        attention = [[name, found] for name, found in _attention_flags(self._vllm_config)]
        canonical = json.dumps([buffers, flags, attention], sort_keys=True, default=str)
        return hashlib.blake2b(canonical.encode(), digest_size=16, person=b"kvcast-model").hexdigest()

    def files_read(self, loader: Any, folder: str) -> set[str]:
        """Names of the weight files that vLLM's default `loader` reads for this very model, which lies in a folder."""
        model = self._worker.get_model()
        sources = [
            loader.Source(
                folder,
                None,
                fall_back_to_pt=getattr(model, "fall_back_to_pt_during_load", True),
                allow_patterns_overrides=getattr(model, "allow_patterns_overrides", None),
            ),
            *getattr(model, "secondary_weights", ()),
        ]
        return {Path(file).name for source in sources for file in files_of_source(loader, source)}


def files_of_source(loader: Any, source: Any) -> list[str]:
    """The files that vLLM's default loader reads of one source."""
    _, files, *_ = loader._prepare_weights(
        source.model_or_path,
        source.subfolder,
        source.revision,
        source.fall_back_to_pt,
        source.allow_patterns_overrides,
    )
    return list(files)


def _tables(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Buffers, and the plain tensors of rotary modules."""
    yield from ((name, tensor) for name, tensor in model.named_buffers() if EXPERTS not in name.rpartition(".")[2])
    yield from rotary_tensors(model)


def _flags(model: torch.nn.Module) -> Iterator[tuple[str, dict[str, Any]]]:
    """All settings of rotary modules, and the switches and factors of the model's own."""
    for name, module in model.named_modules():
        if is_rotary(module):
            found = settings_of(module, SETTINGS)
        elif type(module).__module__.startswith(NO_MODEL) or hasattr(module, "do_not_compile"):
            continue  # what vLLM compiles has flags of that, which differ from start to start
        else:
            found = settings_of(module, (bool, float))
        if found:
            yield name.replace(".base_layer", ""), found


def _attention_flags(vllm_config: Any) -> Iterator[tuple[str, dict[str, str]]]:
    """Of each layer with a cache: what it attends to."""
    for name, layer in sorted(get_layers_from_vllm_config(vllm_config, AttentionLayerBase).items()):
        found = {key: _said(layer, key) for key in ATTENTION_FLAGS}
        implementation = getattr(layer, "impl", None)
        yield name, found | {f"impl.{key}": _said(implementation, key) for key in IMPLEMENTATION_FLAGS}


def _said(owner: Any, name: str) -> str:
    value = getattr(owner, name, None)
    return str(value.tolist() if isinstance(value, torch.Tensor) else value)
